"""The stable interface for authors of methods: all names that a method may import.

A name is removed, or changes its meaning, only after one minor release with a warning. A method is
a subclass of `Method` that declares `up` and `down`, and defines `client_update` and
`server_update`. The guide is `docs/add-a-method.md`.
"""

from fedgh.core import class_table, low_rank, questions, soft_labels
from fedgh.core.average import (
    WeightedMean,
    load_network,
    mean_by_examples,
    network_spec,
    network_state,
    network_weights,
    plain_mean,
    update_spec,
)
from fedgh.core.batches import forever, shuffled
from fedgh.core.groups import (
    GroupMeans,
    group_numbers,
    group_prefix,
    states_by_group,
)
from fedgh.core.header import LinearSGD, linear_header
from fedgh.core.learn import Learner, learn, on_public, public_outputs
from fedgh.core.local import (
    class_means,
    class_outputs,
    class_statistics,
    measure_batch_statistics,
    network_outputs,
    numbered,
    outputs,
    train,
    unlabelled,
)
from fedgh.core.losses import distill
from fedgh.core.message import (
    HEADER,
    NOTHING,
    LabelCounts,
    Message,
    Named,
    Network,
    OneOf,
    Own,
    PerClass,
    PerSample,
    PublicOutputs,
    QuantisedOutputs,
    SamplePart,
    Shapes,
    Sharing,
    for_each_class,
)
from fedgh.core.method import (
    Count,
    Fraction,
    Method,
    Models,
    NetworkName,
    NetworkNames,
    NonNegative,
    Positive,
    PublicFor,
    SamePart,
    Several,
)
from fedgh.core.public_draw import public_draw
from fedgh.core.public_round import CLOCK, next_mean, remember, start_clock, train_public
from fedgh.core.restart import restart
from fedgh.core.scaler import fold_scaler, layer_rates, scaled
from fedgh.core.subnet import CoordinateMean, Cut, Sizes, cut, put, sizes_of, take
from fedgh.core.types import (
    Client,
    Examples,
    Payload,
    Recipient,
    SplitModel,
    Task,
    Upload,
    part,
    prefixed,
)
from fedgh.core.uploads import Uploads
from fedgh.core.wire import Dim, Field, Spec, largest_row_norm
from fedgh.errors import ConfigError, WireError
from fedgh.models import generator, shared_layers, shared_model
from fedgh.models.cuts import check_cut, check_cuts, shared_sizes
from fedgh.models.input_generator import input_generator
from fedgh.models.nested import Nested, check_nested

__all__ = [
    "CLOCK",
    "HEADER",
    "NOTHING",
    "Client",
    "ConfigError",
    "CoordinateMean",
    "Count",
    "Cut",
    "Dim",
    "Examples",
    "Field",
    "Fraction",
    "GroupMeans",
    "LabelCounts",
    "Learner",
    "LinearSGD",
    "Message",
    "Method",
    "Models",
    "Named",
    "Nested",
    "Network",
    "NetworkName",
    "NetworkNames",
    "NonNegative",
    "OneOf",
    "Own",
    "Payload",
    "PerClass",
    "PerSample",
    "Positive",
    "PublicFor",
    "PublicOutputs",
    "QuantisedOutputs",
    "Recipient",
    "SamePart",
    "SamplePart",
    "Several",
    "Shapes",
    "Sharing",
    "Sizes",
    "Spec",
    "SplitModel",
    "Task",
    "Upload",
    "Uploads",
    "WeightedMean",
    "WireError",
    "check_cut",
    "check_cuts",
    "check_nested",
    "class_means",
    "class_outputs",
    "class_statistics",
    "class_table",
    "cut",
    "distill",
    "fold_scaler",
    "for_each_class",
    "forever",
    "generator",
    "group_numbers",
    "group_prefix",
    "input_generator",
    "largest_row_norm",
    "layer_rates",
    "learn",
    "linear_header",
    "load_network",
    "low_rank",
    "mean_by_examples",
    "measure_batch_statistics",
    "network_outputs",
    "network_spec",
    "network_state",
    "network_weights",
    "next_mean",
    "numbered",
    "on_public",
    "outputs",
    "part",
    "plain_mean",
    "prefixed",
    "public_draw",
    "public_outputs",
    "put",
    "questions",
    "remember",
    "restart",
    "scaled",
    "shared_layers",
    "shared_model",
    "shared_sizes",
    "shuffled",
    "sizes_of",
    "soft_labels",
    "start_clock",
    "states_by_group",
    "take",
    "train",
    "train_public",
    "unlabelled",
    "update_spec",
]
