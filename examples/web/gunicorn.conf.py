"""gunicorn --config gunicorn.conf.py service:app"""

import os

bind = os.environ.get("BANK_BIND", "127.0.0.1:8000")
worker_class = "asgi"
workers = int(os.environ.get("BANK_WORKERS", "2"))
timeout = 30  # a stalled worker is killed, and its transactions are rolled back
graceful_timeout = 15  # more than ANSWER_S of service.py, so that requests in flight are answered first
control_socket_disable = True  # it is in the home folder, which an image may lack or not allow to write
