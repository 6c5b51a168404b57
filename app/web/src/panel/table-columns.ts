// The columns of a table: which have numbers, and the order of its rows by one of them.

export type TableOrder = { column: number; isDescending: boolean };

/** Numbers as they are written in a column: with a point before decimals, or with a comma. Spaces and the other sign may group digits. */
const POINT = /^[-+−]?[$€£¥]?(?:0|[1-9]\d*|[1-9]\d{0,2}(?:[,'\u2019\u00a0\u202f ]\d{3})+)?(?:(?<=\d)|(?=\.\d))(?:\.\d+)?(?:e[-+]?\d+)?\s?[%€]?$/i;
const COMMA = /^[-+−]?[$€£¥]?(?:0|[1-9]\d*|[1-9]\d{0,2}(?:[.'\u2019\u00a0\u202f ]\d{3})+)(?:,\d+)?\s?[%€]?$/;

/** The numbers of a column by row, NaN where it is empty; null if something else is in it, or nothing. */
export function numbersIn(values: readonly string[]): readonly number[] | null {
  const trimmed = values.map((value) => value.trim());
  const filled = trimmed.filter((value) => value !== "");
  if (filled.length === 0) return null;
  if (filled.every((value) => POINT.test(value))) return trimmed.map((value) => numberOf(value));
  if (filled.every((value) => COMMA.test(value))) return trimmed.map((value) => numberOf(value.replaceAll(".", "").replace(",", ".")));
  return null;
}

/** The columns of a table: the numbers of each, or null where it has text. The longest row says how many there are. */
export function numericColumns(rows: readonly (readonly string[])[]): readonly (readonly number[] | null)[] {
  const count = rows.reduce((most, row) => Math.max(most, row.length), 0);
  return Array.from({ length: count }, (_, column) => numbersIn(rows.map((row) => row[column] ?? "")));
}

/** The indexes of the rows in this order. Rows without a value come last, and equal ones stay as they are. */
export function sortedRows(rows: readonly (readonly string[])[], { column, isDescending }: TableOrder, numbers: readonly number[] | null, locale: string): number[] {
  const words = new Intl.Collator(locale, { numeric: true, sensitivity: "base" });
  const isEmpty = (row: number) => (rows[row]?.[column] ?? "").trim() === "";
  const compare = (one: number, other: number) => (numbers ? (numbers[one] ?? 0) - (numbers[other] ?? 0) : words.compare(rows[one]?.[column] ?? "", rows[other]?.[column] ?? ""));
  return rows
    .map((_, index) => index)
    .sort((one, other) => Number(isEmpty(one)) - Number(isEmpty(other)) || (isEmpty(one) ? 0 : compare(one, other) * (isDescending ? -1 : 1)));
}

/** The order after a press on the head of a column: up, down, then as the file has it. */
export function nextOrder(order: TableOrder | null, column: number): TableOrder | null {
  if (order?.column !== column) return { column, isDescending: false };
  return order.isDescending ? null : { column, isDescending: true };
}

function numberOf(written: string): number {
  const plain = written.replace(/[,'\u2019\u00a0\u202f $€£¥%]/g, "").replace("−", "-");
  return plain === "" ? Number.NaN : Number(plain);
}
