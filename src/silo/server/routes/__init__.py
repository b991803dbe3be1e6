"""What is asked over HTTP, one module per subject; `silo.server.app` lists every route with its roles."""
