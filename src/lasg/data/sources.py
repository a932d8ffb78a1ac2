"""What the named data sets are made of: their files, checksums and official addresses."""

import difflib
from dataclasses import dataclass

from lasg.errors import LasgError

LIBSVM_PREFIX = "libsvm:"
CSV_PREFIX = "csv:"
IMAGES_PREFIX = "images:"
OWN_PREFIXES = (LIBSVM_PREFIX, CSV_PREFIX, IMAGES_PREFIX)
"""What the names of a user's own data begin with; a path follows."""
TABLE_PREFIXES = (LIBSVM_PREFIX, CSV_PREFIX)
"""Those whose features are numbers in columns."""

_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/covtype/"
_MNIST = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)


@dataclass(frozen=True)
class Source:
    """One canonical file. `sha256` is of the DEcompressed content, since mirrors compress differently."""

    name: str
    sha256: str
    size: int
    urls: tuple[str, ...]
    instead: str = ""
    """Another file that serves as well, where this one is not here: it has no address."""

    @property
    def plain_name(self) -> str:
        """The file's name once decompressed, which is accepted as well."""
        return self.name.removesuffix(".gz").removesuffix(".bz2")


@dataclass(frozen=True)
class Named:
    """One named data set: the files it needs (none: it is embedded) and a line about it."""

    files: tuple[str, ...]
    summary: str
    shape: tuple[int, ...] = ()
    """Of a sample, where it is an image: channels, height, width."""
    embedded_in: str = ""
    """The package that it comes with, where it needs no files."""
    vocabulary: int = 0
    """How many different characters there are, where samples are windows of text."""


def _source(name: str, sha256: str, size: int, *bases: str) -> Source:
    return Source(name, sha256, size, tuple(base + name for base in bases))


FILES: dict[str, Source] = {
    source.name: source
    for source in (
        _source(
            "ijcnn1.bz2",
            "16506cad788cf7c9607454150ed1994788204bac2ff4c9cb3b320036b6950d3f",
            1_398_220,
            _LIBSVM,
        ),
        _source(
            "ijcnn1.t.bz2",
            "e7b0bbd518641980dc322746c6bc59d019d3153934e6258e48f9d8cfae2c4bb8",
            2_597_597,
            _LIBSVM,
        ),
        _source(
            "covtype.data.gz",
            "0a9371cef7c964b5475d6053cc3e0894a5aa6f65ad1ed3ecb01c45aa96217945",
            11_240_707,
            _UCI,
        ),
        _source(
            "train-images-idx3-ubyte.gz",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            9_912_422,
            *_MNIST,
        ),
        _source(
            "train-labels-idx1-ubyte.gz",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            28_881,
            *_MNIST,
        ),
        _source(
            "t10k-images-idx3-ubyte.gz",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            1_648_877,
            *_MNIST,
        ),
        _source(
            "t10k-labels-idx1-ubyte.gz",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            4_542,
            *_MNIST,
        ),
        _source(
            "tiny-imagenet-200.zip",
            "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
            248_100_043,
            "http://cs231n.stanford.edu/",
        ),
        Source(
            "tiny-imagenet-20.zip",
            "60d353bb2b7dd782e409e3a01c77b51bd312dd329f490a16d165a5e1dc247758",
            23_954_424,
            (),
            instead="tiny-imagenet-200.zip",
        ),
    )
}

_MNIST_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)

_TINY = (3, 64, 64)
SKLEARN = "scikit-learn"

DATASETS: dict[str, Named] = {
    "ijcnn1": Named(("ijcnn1.bz2", "ijcnn1.t.bz2"), "49,990 x 22, 2 classes; test: all of ijcnn1.t"),
    "ijcnn1.t": Named(("ijcnn1.t.bz2", "ijcnn1.bz2"), "first 90,000 of 91,701 x 22, 2 classes; test: ijcnn1"),
    "covtype": Named(("covtype.data.gz",), "581,012 x 54, class 2 against the rest; no test set"),
    "mnist": Named(_MNIST_FILES, "60,000 x 784, 10 classes; test: t10k", (1, 28, 28)),
    "mnist-3-5": Named(_MNIST_FILES, "digits 3 (class 1) and 5 (class 0), 11,552 x 784; test: t10k", (1, 28, 28)),
    "tiny-imagenet": Named(
        ("tiny-imagenet-200.zip",), "100,000 images of 64 x 64 in colour, 200 classes; test: val", _TINY
    ),
    "tiny-imagenet-20": Named(
        ("tiny-imagenet-20.zip",), "its first 20 classes, 10,000 images; test: their 1,000 of val", _TINY
    ),
    "tiny-imagenet-10a": Named(
        ("tiny-imagenet-20.zip",), "the first 10 of these, 5,000 images; test: their 500 of val", _TINY
    ),
    "tiny-imagenet-10b": Named(
        ("tiny-imagenet-20.zip",), "the last 10 of these, 5,000 images; test: their 500 of val", _TINY
    ),
    "digits": Named((), "1,500 x 64, 10 classes, in scikit-learn; test: the last 297", (1, 8, 8), SKLEARN),
    "breast-cancer": Named((), "456 x 30, 2 classes, in scikit-learn; test: every fifth row", (), SKLEARN),
    "king-james": Named(
        (), "8 parts of 1,780 windows of 64 characters, in lasg; test: the last 92 of each", (), "lasg", vocabulary=63
    ),
}


def is_own(name: str) -> bool:
    """Tell whether a name means the user's own data: libsvm:PATH, csv:PATH or images:PATH."""
    return name.startswith(OWN_PREFIXES)


@dataclass(frozen=True)
class Reading:
    """How the user's own data are read."""

    label_column: str | None = None
    """The column of a CSV file that holds the classes; None: the one called target, label or y."""
    scale: bool = False
    """Whether features are standardised."""

    def check(self, name: str) -> None:
        """Refuse options that the data called `name` have no use for."""
        if self.label_column is not None and not name.startswith(CSV_PREFIX):
            raise LasgError(f"label_column names a column of {CSV_PREFIX}PATH, and the data are {name}: leave it out")
        if self.scale and not name.startswith(TABLE_PREFIXES):
            kinds = " and ".join(f"{prefix}PATH" for prefix in TABLE_PREFIXES)
            raise LasgError(f"scale is for {kinds}; {name} is scaled already: leave it out")


AS_IT_IS = Reading()


def named(name: str) -> Named:
    """Look a data set up in the table; an unknown name is an error that lists the known ones."""
    if name in DATASETS:
        return DATASETS[name]
    close = difflib.get_close_matches(name.lower(), DATASETS, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    known = ", ".join(DATASETS)
    raise LasgError(
        f"unknown data set {name!r}: {hint}The names are {known}, {LIBSVM_PREFIX}PATH or {CSV_PREFIX}PATH for a file, "
        f"or {IMAGES_PREFIX}PATH for a folder or zip in tiny-imagenet's layout"
    )
