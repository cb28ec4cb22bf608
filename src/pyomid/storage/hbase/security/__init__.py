"""Who this client is, and how HBase and ZooKeeper are shown it: the SASL exchange as steps, Kerberos by GSSAPI."""
