"""gunicorn --config gunicorn.conf.py service:app"""

import os

bind = os.environ.get("BANK_BIND", "127.0.0.1:8000")
worker_class = "asgi"
workers = int(os.environ.get("BANK_WORKERS", "2"))
timeout = 30  # a worker that stands still is ended: its transactions are rolled back
graceful_timeout = 15  # more than ANSWER_S of service.py: requests under way are answered first
control_socket_disable = True  # it lies in the home folder, and an image may have none that can be written
