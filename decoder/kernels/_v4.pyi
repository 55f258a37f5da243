from rondel.decoder.kernels._base import attend as attend
from rondel.decoder.kernels._base import damaged as damaged
from rondel.decoder.kernels._base import in_range as in_range
from rondel.decoder.kernels._base import place as place
from rondel.decoder.kernels._base import read as read
from rondel.decoder.kernels._base import read_pages as read_pages
from rondel.decoder.kernels._base import same as same
from rondel.decoder.kernels._base import scores as scores
