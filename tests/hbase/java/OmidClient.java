// A Java Omid application that a test drives line by line: requests on standard input, one answer line each.
// Words are separated by tabs, bytes are hexadecimal ("-" for none). In Omid's own package, because the hook
// that lets a client "die" between its commit and its post-commit actions is visible there only.
package org.apache.omid.transaction;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.HBaseConfiguration;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.ColumnFamilyDescriptorBuilder;
import org.apache.hadoop.hbase.client.Connection;
import org.apache.hadoop.hbase.client.ConnectionFactory;
import org.apache.hadoop.hbase.client.Delete;
import org.apache.hadoop.hbase.client.Get;
import org.apache.hadoop.hbase.client.Put;
import org.apache.hadoop.hbase.client.Result;
import org.apache.hadoop.hbase.client.ResultScanner;
import org.apache.hadoop.hbase.client.Scan;
import org.apache.hadoop.hbase.client.Table;
import org.apache.hadoop.hbase.client.TableDescriptorBuilder;
import org.apache.hadoop.hbase.codec.Codec;
import org.apache.hadoop.hbase.codec.KeyValueCodec;
import org.apache.hadoop.hbase.util.Bytes;
import org.apache.omid.tso.client.CellId;
import org.apache.omid.tso.client.OmidClientConfiguration;
import org.apache.phoenix.thirdparty.com.google.common.util.concurrent.Futures;
import org.apache.phoenix.thirdparty.com.google.common.util.concurrent.ListenableFuture;

public final class OmidClient {
    /** What a client leaves behind that dies right after the TSO's answer: nothing done. */
    private static final class NoPostCommit implements PostCommitActions {
        public ListenableFuture<Void> updateShadowCells(AbstractTransaction<? extends CellId> tx) {
            return Futures.immediateFuture(null);
        }

        public ListenableFuture<Void> removeCommitTableEntry(AbstractTransaction<? extends CellId> tx) {
            return Futures.immediateFuture(null);
        }
    }

    private final PrintStream out;
    private final Map<String, Transaction> transactions = new HashMap<>();
    private final Map<String, TTable> tables = new HashMap<>();
    /** Before "open": TLS with the TSO; trust store, key store ("-" for none), and the password of both. */
    private String[] stores;
    /** Before "open": a namespace in ZooKeeper and a commit table other than Omid's defaults. */
    private String namespace = "";
    private String commitTable;
    private Connection connection;
    private HBaseTransactionManager manager;
    private HBaseTransactionManager dying;

    private OmidClient(PrintStream out) {
        this.out = out;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);  // libraries may print
        OmidClient client = new OmidClient(out);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String answer;
            try {
                answer = "ok\t" + client.answer(line.split("\t"));
            } catch (Throwable error) {
                answer = "error\t" + error.getClass().getSimpleName() + "\t"
                        + String.valueOf(error.getMessage()).replaceAll("\\s", " ");
            }
            out.println(answer);
            out.flush();
        }
        System.exit(0);
    }

    private String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "open": return open(words[1], Integer.parseInt(words[2]), words[3], words[4], words[5]);
            case "names": return names(words);
            case "trust": return trust(words);
            case "create": return create(words[1], words[2]);
            case "begin": return begin(words[1], words.length > 2 && words[2].equals("dying"));
            case "put": return put(words);
            case "get": return get(words);
            case "scan": return scan(words);
            case "delete": return delete(words);
            case "checkpoint": return checkpoint(words[1]);
            case "commit": return commit(words[1]);
            case "flush": return flush(words[1]);
            case "rollback": manager.rollback(transactions.remove(words[1])); return "";
            case "fence": return fence(words[1], words.length > 2 ? words[2] : null);
            case "dump": return dump(words[1]);
            case "shadow": return hex(CellUtils.addShadowCellSuffixPrefix(bytes(words[1])));
            default: throw new IllegalArgumentException("unknown request " + words[0]);
        }
    }

    private String names(String[] words) {
        namespace = words[1];
        commitTable = words[2];
        return "";
    }

    private String trust(String[] words) {
        stores = words;
        return "";
    }

    private String open(String zookeeper, int zookeeperPort, String kind, String address, String level) throws Exception {
        Configuration hbase = HBaseConfiguration.create();
        hbase.set("hbase.zookeeper.quorum", zookeeper);
        hbase.setInt("hbase.zookeeper.property.clientPort", zookeeperPort);
        connection = ConnectionFactory.createConnection(hbase);
        manager = HBaseTransactionManager.builder(configuration(hbase, kind, address, level)).build();
        dying = HBaseTransactionManager.builder(configuration(hbase, kind, address, level))
                .postCommitter(new NoPostCommit()).build();
        return "";
    }

    private HBaseOmidClientConfiguration configuration(
            Configuration hbase, String kind, String address, String level) {
        HBaseOmidClientConfiguration conf = new HBaseOmidClientConfiguration();
        conf.setHBaseConfiguration(hbase);
        conf.setConnectionType(OmidClientConfiguration.ConnType.valueOf(kind));
        conf.setConnectionString(address);
        conf.setConflictAnalysisLevel(OmidClientConfiguration.ConflictDetectionLevel.valueOf(level));
        if (!namespace.isEmpty()) {
            conf.getOmidClientConfiguration().setZkNamespace(namespace);
            conf.setCommitTableName(commitTable);
        }
        conf.setRequestTimeoutInMs(2000);
        conf.setReconnectionDelayInSecs(1);
        conf.setRetryDelayInMs(300);
        conf.setRequestMaxRetries(20);
        if (stores != null) {
            OmidClientConfiguration client = conf.getOmidClientConfiguration();
            client.setTlsEnabled(true);
            client.setTrustStoreLocation(stores[1]);
            client.setTrustStorePassword(stores[3]);
            client.setTrustStoreType("PKCS12");
            if (!stores[2].equals("-")) {
                client.setKeyStoreLocation(stores[2]);
                client.setKeyStorePassword(stores[3]);
                client.setKeyStoreType("PKCS12");
            }
        }
        return conf;
    }

    private String create(String table, String family) throws Exception {
        connection.getAdmin().createTable(TableDescriptorBuilder.newBuilder(TableName.valueOf(table))
                .setColumnFamily(ColumnFamilyDescriptorBuilder.newBuilder(Bytes.toBytes(family))
                        .setMaxVersions(Integer.MAX_VALUE).build())
                .build());
        return "";
    }

    private String begin(String name, boolean dies) throws Exception {
        Transaction tx = (dies ? dying : manager).begin();
        transactions.put(name, tx);
        return Long.toString(((AbstractTransaction<?>) tx).getStartTimestamp());
    }

    /** The fence is a transaction too, whose epoch is its own timestamp: it seals whatever it meets undecided. */
    private String fence(String table, String name) throws Exception {
        Transaction tx = manager.fence(Bytes.toBytes(table));
        if (name != null) {
            transactions.put(name, tx);
        }
        return Long.toString(tx.getTransactionId());
    }

    private TTable table(String name) throws Exception {
        TTable found = tables.get(name);
        if (found == null) {
            found = new TTable(connection, name);
            tables.put(name, found);
        }
        return found;
    }

    private String put(String[] words) throws Exception {
        Put put = new Put(bytes(words[3]));
        put.addColumn(bytes(words[4]), bytes(words[5]), bytes(words[6]));
        table(words[2]).put(transactions.get(words[1]), put);
        return "";
    }

    private String get(String[] words) throws Exception {
        Get get = new Get(bytes(words[3]));
        if (words.length > 5) {
            get.addColumn(bytes(words[4]), bytes(words[5]));
        }
        return show(table(words[2]).get(transactions.get(words[1]), get));
    }

    private String scan(String[] words) throws Exception {
        List<String> rows = new ArrayList<>();
        try (ResultScanner scanner = table(words[2]).getScanner(transactions.get(words[1]), new Scan())) {
            for (Result row : scanner) {
                rows.add(hex(row.getRow()) + "=" + show(row));
            }
        }
        return String.join(";", rows);
    }

    private String delete(String[] words) throws Exception {
        Delete delete = new Delete(bytes(words[3]));
        if (words.length > 5) {
            delete.addColumns(bytes(words[4]), bytes(words[5]));
        } else if (words.length > 4) {
            delete.addFamily(bytes(words[4]));
        }
        table(words[2]).delete(transactions.get(words[1]), delete);
        return "";
    }

    private String checkpoint(String name) throws Exception {
        AbstractTransaction<?> tx = (AbstractTransaction<?>) transactions.get(name);
        tx.checkpoint();
        return Long.toString(tx.getWriteTimestamp());
    }

    /** The cells are in HBase when this returns: the moment before the commit request. */
    private String flush(String name) throws Exception {
        ((HBaseTransaction) transactions.get(name)).flushTables();
        return "";
    }

    private String commit(String name) throws Exception {
        AbstractTransaction<?> tx = (AbstractTransaction<?>) transactions.remove(name);
        tx.getTransactionManager().commit(tx);
        return Long.toString(tx.getCommitTimestamp());
    }

    /** Every cell of a table, encoded as HBase sends it: by the codec that our client asks the server for. */
    private String dump(String name) throws Exception {
        ByteArrayOutputStream block = new ByteArrayOutputStream();
        Codec.Encoder encoder = new KeyValueCodec().getEncoder(block);
        try (Table raw = connection.getTable(TableName.valueOf(name));
                ResultScanner scanner = raw.getScanner(new Scan().setRaw(true).readAllVersions())) {
            for (Result row : scanner) {
                for (Cell cell : row.rawCells()) {
                    encoder.write(cell);
                }
            }
        }
        encoder.flush();
        return hex(block.toByteArray());
    }

    private static String show(Result result) {
        List<String> cells = new ArrayList<>();
        if (!result.isEmpty()) {
            for (Cell cell : result.rawCells()) {
                cells.add(hex(CellUtil.cloneFamily(cell)) + ":" + hex(CellUtil.cloneQualifier(cell)) + ":"
                        + cell.getTimestamp() + ":" + hex(CellUtil.cloneValue(cell)));
            }
        }
        return String.join(",", cells);
    }

    private static byte[] bytes(String text) {
        return text.equals("-") ? new byte[0] : Bytes.fromHex(text);
    }

    private static String hex(byte[] value) {
        return value.length == 0 ? "-" : Bytes.toHex(value);
    }
}
