"""Names on the hub, asked for once: the libraries that load them would try for a minute."""

from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

from torch_alm.unlearning.refusal import Refusal, first_line

SECONDS = 10.0
CONFIGS = ("config.json", "adapter_config.json")


def check_model(name: str) -> None:
    """Refuse what is no folder, is not in the cache, and that the hub does not know or give."""
    check_known(f"the model {name} is no folder", name, "model")


def check_known(told: str, name: str, kind: str) -> None:
    """Refuse a name that is none, or that the hub does not know or give.

    Args:
        told: the beginning of the sentence: what was given, and what it is not.
        name: as on the hub.
        kind: `"model"`, which may be in the cache, or `"dataset"`.
    """
    try:
        found = (try_to_load_from_cache(name, file, repo_type=kind) for file in CONFIGS)
        if not any(isinstance(path, str) for path in found):
            HfApi().repo_info(name, repo_type=kind, timeout=SECONDS)
    except HFValidationError as error:
        raise Refusal(
            f"{told}, and no name of a {kind} either (those are NAME or OWNER/NAME). Is the path "
            "right?"
        ) from error
    except RepositoryNotFoundError as error:
        raise Refusal(
            f"{told}, and the hub has no {kind} of that name, or shows it only to those who log in "
            "(hf auth login). Is the path, or the name, right?"
        ) from error
    except Exception as error:  # whatever may come between: no network, a proxy, offline mode
        raise Refusal(
            f"{told}, is not in the hub's cache, and the hub cannot be asked "
            f"({first_line(error).rstrip('.')}). Is the path right, or is there no network?"
        ) from error
