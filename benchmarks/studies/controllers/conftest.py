"""What pytest leaves alone here: the comparison with libraries that are not installed."""

from importlib.util import find_spec

PEERS = ("cooper", "humancompatible")
collect_ignore = [] if all(map(find_spec, PEERS)) else ["controllers.py", "peers.py", "snippets.py"]
