"""TLS 1.3 between processes (mTLS, a role a certificate) and for clients (ALPN qim/1), with certificates reloaded."""
