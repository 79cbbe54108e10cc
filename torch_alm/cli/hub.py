"""Names of models on the hub, asked for once: transformers would try for a minute."""

from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

from torch_alm.cli.refusal import Refusal

SECONDS = 10.0
CONFIGS = ("config.json", "adapter_config.json")


def check_on_hub(name: str) -> None:
    """Refuse what is no folder, is not in the cache, and that the hub does not know or give.

    Raises:
        Refusal: says which, and what came in between.
    """
    try:
        if any(isinstance(try_to_load_from_cache(name, file), str) for file in CONFIGS):
            return
        HfApi().model_info(name, timeout=SECONDS)
    except HFValidationError as error:
        raise Refusal(
            f"--model {name} is no folder, and no name of a model either (those are NAME or "
            "OWNER/NAME). Is the path right?"
        ) from error
    except RepositoryNotFoundError as error:
        raise Refusal(
            f"--model {name} is no folder, and the hub has no model of that name, or shows it "
            "only to those who log in (hf auth login). Is the path, or the name, right?"
        ) from error
    except Exception as error:  # whatever may come between: no network, a proxy, offline mode
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise Refusal(
            f"--model {name} is no folder, it is not in the hub's cache, and the hub cannot be "
            f"asked ({first.rstrip('.')}). Is the path right, or is there no network?"
        ) from error
