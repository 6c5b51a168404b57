// The arithmetic of the charts.

export interface BarSeries {
  readonly name: string;
  readonly values: readonly number[];
}

export interface Measure {
  readonly group: string;
  readonly name: string;
  readonly value: number;
}

const NICE_STEPS = [1, 2, 2.5, 5, 10];
export const OTHERS = "Others";

/** The upper end of a scale: the least round number that is not below `largest`; 1 if nothing is above 0. */
export function scaleTop(largest: number): number {
  if (!(largest > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(largest));
  return power * (NICE_STEPS.find((step) => step * power >= largest * (1 - 1e-9)) ?? 10);
}

/** One series for each of the largest `count` names, and one for the others. `groups` are the places on the axis. */
export function seriesOf(measures: readonly Measure[], groups: readonly string[], count: number): BarSeries[] {
  const totals = new Map<string, number>();
  for (const { name, value } of measures) totals.set(name, (totals.get(name) ?? 0) + value);
  const largest = [...totals.entries()].sort(([, one], [, other]) => other - one).map(([name]) => name);
  const shown = largest.slice(0, largest.length > count ? count - 1 : count);
  const sum = (belongs: (name: string) => boolean) => groups.map((group) => measures.reduce((total, one) => total + (one.group === group && belongs(one.name) ? one.value : 0), 0));
  const series = shown.map((name) => ({ name, values: sum((one) => one === name) }));
  return largest.length > shown.length ? [...series, { name: OTHERS, values: sum((one) => !shown.includes(one)) }] : series;
}

/** The days from `first` to `last` (ISO dates), at most `most`. */
export function daysBetween(first: string, last: string, most = 400): string[] {
  const days: string[] = [];
  for (let day = Date.parse(`${first.slice(0, 10)}T00:00:00Z`); days.length < most && day <= Date.parse(`${last.slice(0, 10)}T00:00:00Z`); day += 86_400_000) {
    days.push(new Date(day).toISOString().slice(0, 10));
  }
  return days;
}

const TICK_STEPS_MS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 18e5, 36e5, 72e5, 216e5, 432e5, 864e5];

/** Round times from 0 to `span` (ms), at most `most` + 1. */
export function timeTicks(span: number, most: number): number[] {
  const step = TICK_STEPS_MS.find((one) => span / one <= most) ?? Math.ceil(span / most / 864e5) * 864e5;
  return Array.from({ length: Math.floor(span / step) + 1 }, (_, index) => index * step);
}
