"""Writes a worker's part of a CSV feed: no column is dropped because the first item lacked it."""

from __future__ import annotations

import csv
from io import BytesIO, StringIO
from typing import Any

from itemadapter import ItemAdapter
from scrapy.exporters import CsvItemExporter

from scrapy_dq.crew.feeds.csv_format import header_mark


class PartCsvItemExporter(CsvItemExporter):
    """Scrapy's exporter, but in a part an item with a new field writes a wider header first.

    Scrapy takes the columns from the first item and drops other fields of later items. In a crew, the result
    would depend on which worker scraped which item first.
    """

    def __init__(self, file: BytesIO, *args: Any, **kwargs: Any) -> None:
        super().__init__(file, *args, **kwargs)
        # Fields that the user has given stay; so does a file that is not a part, because it is not joined.
        self._grows = (
            getattr(file, "is_part", False) and self.include_headers_line and not self.fields_to_export
        )
        self._columns: dict[str, None] = {}
        self._begun = False

    def export_item(self, item: Any) -> None:
        """Scrapy's hook. Source: scrapy/extensions/feedexport.py"""
        if self._grows:
            self._widen(dict.fromkeys(ItemAdapter(item).field_names()))
        super().export_item(item)

    def _widen(self, fields: dict[str, None]) -> None:
        columns = self._columns | fields
        if self._begun and columns == self._columns:
            return
        text = StringIO(newline="")
        csv.writer(text, **self._kwargs).writerow(list(self._build_row(columns)))
        # In one write: a kill leaves all of it or a torn record; a full disk leaves the file unchanged.
        self.stream.write((header_mark(self._kwargs) if self._begun else "") + text.getvalue())
        self._begun, self._columns, self.fields_to_export = True, columns, list(columns)
        # Otherwise Scrapy would write its own before the first item.
        self._headers_not_written = False
