"""Leave the comparison with libraries that are not installed out of pytest's collection."""

from importlib.util import find_spec

PEERS = ("cooper", "humancompatible")
collect_ignore = [] if all(map(find_spec, PEERS)) else ["costs.py", "peers.py", "snippets.py"]
