"""A report as one self-contained web page, which needs no server and no network."""

from fedtailor.lab.report.page.contents import page_of
from fedtailor.lab.report.page.parts import Chart, Page, Picture, Section, Series
from fedtailor.lab.report.page.render import render, write_page

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
