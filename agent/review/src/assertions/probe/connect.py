import errno, socket, sys

address, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
try:
    socket.create_connection((address, port), seconds).close()
    said = "connected"
except ConnectionRefusedError:
    said = "refused"
except (socket.timeout, TimeoutError):
    said = "timed out"
except OSError as error:
    away = error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH)
    said = "unreachable" if away else "failed %s" % error
print("netpold: " + said)
