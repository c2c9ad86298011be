"""A report as one self-contained web page, which needs no server and no network."""

from fedtailor.report.page.contents import page_of
from fedtailor.report.page.parts import Chart, Page, Picture, Section, Series
from fedtailor.report.page.render import render, write_page

__all__ = [
    "Chart",
    "Page",
    "Picture",
    "Section",
    "Series",
    "page_of",
    "render",
    "write_page",
]
