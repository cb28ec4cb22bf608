// A JDBC program that a test drives: java Sql URL, statements on standard input, one a line. Of a query it prints
// its rows, columns separated by tabs; of everything else "done"; of a failure one line that begins with "failed".
// "commit" commits what came before.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;

public final class Sql {
    private Sql() {}

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (Connection connection = DriverManager.getConnection(arguments[0])) {
            connection.setAutoCommit(false);
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                try {
                    out.println(line.equals("commit") ? commit(connection) : run(connection, line));
                } catch (SQLException | RuntimeException error) {
                    out.println("failed " + error.toString().replace('\n', ' '));
                }
            }
        }
        System.exit(0);
    }

    private static String commit(Connection connection) throws SQLException {
        connection.commit();
        return "done";
    }

    private static String run(Connection connection, String text) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            if (!statement.execute(text)) {
                return "done";
            }
            StringBuilder rows = new StringBuilder();
            ResultSet found = statement.getResultSet();
            int columns = found.getMetaData().getColumnCount();
            while (found.next()) {
                rows.append(rows.length() == 0 ? "" : ";");
                for (int column = 1; column <= columns; column++) {
                    rows.append(column == 1 ? "" : "\t").append(found.getString(column));
                }
            }
            return rows.toString();
        }
    }
}
