"""An app for a client that writes no code: its node.conf names its data and its network.

app="fedgh.flower.own_data:app"
path="images"    a folder with a sub-folder of images for each class, or an .npz file with x and y
network="cnn5"   one of `fedgh list models`, timm/NAME, torchvision/NAME, or module:function
image-size=32    height and width to which images are scaled (32)

A relative path begins in the folder of node.conf. Names and paths are those of the client's own
file; nothing that the operator's settings contain is used in their place.
"""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedgh.core.types import Task
from fedgh.data.own import source_of
from fedgh.defaults import IMAGE_SIZE
from fedgh.errors import ConfigError, first_mistake
from fedgh.flower.bound import NodeConfig
from fedgh.flower.participant import client_app
from fedgh.limits import PositiveInteger
from fedgh.models import extractor
from fedgh.training.client_spec import ClientSpec


class OwnData(BaseModel):
    """The settings of this app; other settings of node.conf are for other parts."""

    model_config = ConfigDict(
        frozen=True, alias_generator=lambda name: name.replace("_", "-"), extra="ignore"
    )

    path: str = Field(min_length=1)
    network: str = Field(min_length=1)
    image_size: PositiveInteger = IMAGE_SIZE

    @classmethod
    def of(cls, node: NodeConfig) -> "OwnData":
        """Return the settings in a node.conf; raise ConfigError if one is missing or wrong."""
        settings = {key.lower().replace("_", "-"): value for key, value in node.items()}
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            raise ConfigError(f"node.conf: {first_mistake(error)}") from None


def make_client(task: Task, node: NodeConfig) -> ClientSpec:
    """Return the client whose data and network node.conf names."""
    own = OwnData.of(node)
    data = source_of(Path(own.path), image_size=own.image_size)
    return ClientSpec(extractor(own.network)(data.shape, task.rep_dim), data)


app = client_app(make_client)
