"""Authentication of this client to HBase and ZooKeeper: SASL exchanges as generators, and Kerberos by GSSAPI."""
