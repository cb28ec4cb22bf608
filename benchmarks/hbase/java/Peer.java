// The Java HBase client and Apache Omid's client as peers of a benchmark, driven line by line: each request names a
// piece of work, its answer is the seconds it took (and what it handled).
package org.apache.omid.transaction;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hbase.HBaseConfiguration;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.Connection;
import org.apache.hadoop.hbase.client.ConnectionFactory;
import org.apache.hadoop.hbase.client.Get;
import org.apache.hadoop.hbase.client.Put;
import org.apache.hadoop.hbase.client.Result;
import org.apache.hadoop.hbase.client.ResultScanner;
import org.apache.hadoop.hbase.client.Scan;
import org.apache.hadoop.hbase.client.Table;
import org.apache.hadoop.hbase.util.Bytes;
import org.apache.omid.tso.client.OmidClientConfiguration;

public final class Peer {
    private static final byte[] FAMILY = Bytes.toBytes("f");
    private static Connection connection;
    private static TransactionManager manager;

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String answer;
            try {
                answer = "ok\t" + answer(line.split("\t"));
            } catch (Throwable error) {
                answer = "error\t" + error.getClass().getSimpleName() + "\t"
                        + String.valueOf(error.getMessage()).replaceAll("\\s", " ");
            }
            out.println(answer);
            out.flush();
        }
        System.exit(0);
    }

    private static String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "open": return open(words);
            case "scan": return scan(words[1]);
            case "puts": return puts(words[1], number(words[2]), number(words[3]), number(words[4]), number(words[5]));
            case "snapshot-scan": return snapshotScan(words[1]);
            case "snapshot-get": return snapshotGet(words[1], number(words[2]));
            case "one-write": return oneWrite(words[1], number(words[2]), number(words[3]));
            case "load": return load(words[1], number(words[2]), number(words[3]), number(words[4]));
            default: throw new IllegalArgumentException(words[0]);
        }
    }

    private static int number(String text) {
        return Integer.parseInt(text);
    }

    private static String open(String[] words) throws Exception {
        Configuration hbase = HBaseConfiguration.create();
        hbase.set("hbase.zookeeper.quorum", words[1]);
        hbase.setInt("hbase.zookeeper.property.clientPort", number(words[2]));
        connection = ConnectionFactory.createConnection(hbase);
        HBaseOmidClientConfiguration conf = new HBaseOmidClientConfiguration();
        conf.setHBaseConfiguration(hbase);
        conf.setConnectionType(OmidClientConfiguration.ConnType.valueOf(words[3]));
        conf.setConnectionString(words[4]);
        manager = HBaseTransactionManager.builder(conf).build();
        return "";
    }

    private static String seconds(long begun, long items) {
        return (System.nanoTime() - begun) / 1e9 + "\t" + items;
    }

    private static Scan everything() {
        return new Scan().readVersions(Integer.MAX_VALUE).setCaching(10_000).setMaxResultSize(2 << 20);
    }

    private static String scan(String name) throws Exception {
        long begun = System.nanoTime();
        long cells = 0;
        try (Table table = connection.getTable(TableName.valueOf(name));
                ResultScanner scanner = table.getScanner(everything())) {
            for (Result row : scanner) {
                cells += row.size();
            }
        }
        return seconds(begun, cells);
    }

    private static Put row(int number, int cells) {
        Put put = new Put(Bytes.toBytes(String.format("row%08d", number)));
        for (int cell = 0; cell < cells; cell++) {
            put.addColumn(FAMILY, Bytes.toBytes("q" + cell), Bytes.toBytes(String.format("value%08d", number)));
        }
        return put;
    }

    private static String puts(String name, int rows, int cells, int batch, int version) throws Exception {
        long begun = System.nanoTime();
        try (Table table = connection.getTable(TableName.valueOf(name))) {
            for (int first = 0; first < rows; first += batch) {
                List<Put> puts = new ArrayList<>();
                for (int number = first; number < Math.min(rows, first + batch); number++) {
                    Put put = new Put(Bytes.toBytes(String.format("row%08d", number)), version);
                    for (int cell = 0; cell < cells; cell++) {
                        put.addColumn(FAMILY, Bytes.toBytes("q" + cell),
                                Bytes.toBytes(String.format("value%08d", number)));
                    }
                    puts.add(put);
                }
                table.put(puts);
            }
        }
        return seconds(begun, rows);
    }

    private static String snapshotScan(String name) throws Exception {
        Transaction tx = manager.begin();
        long begun = System.nanoTime();
        long cells = 0;
        try (TTable table = new TTable(connection, name); ResultScanner scanner = table.getScanner(
                tx, new Scan().setCaching(10_000).setMaxResultSize(2 << 20))) {
            for (Result row : scanner) {
                cells += row.size();
            }
        }
        String answer = seconds(begun, cells);
        manager.rollback(tx);
        return answer;
    }

    private static String snapshotGet(String name, int count) throws Exception {
        Transaction tx = manager.begin();
        long begun = System.nanoTime();
        try (TTable table = new TTable(connection, name)) {
            for (int number = 0; number < count; number++) {
                table.get(tx, new Get(Bytes.toBytes(String.format("row%08d", number))));
            }
        }
        String answer = seconds(begun, count);
        manager.rollback(tx);
        return answer;
    }

    private static String oneWrite(String name, int count, int threads) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<Future<double[]>> running = new ArrayList<>();
        long begun = System.nanoTime();
        for (int thread = 0; thread < threads; thread++) {
            int lane = thread;
            running.add(pool.submit(() -> {
                double[] taken = new double[count];
                try (TTable table = new TTable(connection, name)) {
                    for (int index = 0; index < count; index++) {
                        long start = System.nanoTime();
                        Transaction tx = manager.begin();
                        table.put(tx, row(lane * count + index, 1));
                        manager.commit(tx);
                        taken[index] = (System.nanoTime() - start) / 1e9;
                    }
                }
                return taken;
            }));
        }
        List<Double> all = new ArrayList<>();
        for (Future<double[]> each : running) {
            Arrays.stream(each.get()).forEach(all::add);
        }
        String answer = seconds(begun, all.size());
        pool.shutdown();
        all.sort(null);
        return answer + "\t" + all.get(all.size() / 2);
    }

    private static String load(String name, int transactions, int rows, int cells) throws Exception {
        long begun = System.nanoTime();
        try (TTable table = new TTable(connection, name)) {
            for (int index = 0; index < transactions; index++) {
                Transaction tx = manager.begin();
                List<Put> puts = new ArrayList<>();
                for (int number = 0; number < rows; number++) {
                    puts.add(row(index * rows + number, cells));
                }
                table.put(tx, puts);
                manager.commit(tx);
            }
        }
        return seconds(begun, (long) transactions * rows);
    }
}
