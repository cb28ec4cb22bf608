"""Authentication of this client to HBase and ZooKeeper: the SASL exchange as steps, Kerberos by GSSAPI."""
