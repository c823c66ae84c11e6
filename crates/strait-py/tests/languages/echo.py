"""A program that echoes each message of its parent, with the handles.

    echo.py                      echoes the messages itself
    echo.py PROGRAM ARGUMENTS    starts PROGRAM, and echoes by way of PROGRAM
"""

import sys

import strait

with strait.parent() as parent:
    process, child = strait.spawn(sys.argv[1:]) if sys.argv[1:] else (None, None)
    try:
        while True:
            message = parent.recv_message()
            if child:
                child.send_bytes(message.bytes, handles=message.handles, timeout=60)
                message = child.recv_message(timeout=60)
            parent.send_bytes(message.bytes, handles=message.handles, timeout=60)
    except strait.PeerClosed:
        pass
    if child:
        child.close()
        sys.exit(process.wait(60))
