"""The methods, one file each. A new one is a file beside these and a line below."""

from fedgh.core.method import Method
from fedgh.methods.fd import FD
from fedgh.methods.fedavg import FedAvg
from fedgh.methods.fedgh import FedGH
from fedgh.methods.fedgh_plus import FedGHPlus
from fedgh.methods.fedkd import FedKD
from fedgh.methods.fedproto import FedProto
from fedgh.methods.fml import FML
from fedgh.methods.lg_fedavg import LGFedAvg
from fedgh.methods.standalone import Standalone

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        Standalone,
        FedAvg,
        FML,
        FedKD,
        LGFedAvg,
        FD,
        FedProto,
        FedGH,
        FedGHPlus,
    )
}
