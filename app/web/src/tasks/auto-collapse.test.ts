import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { AutoCollapse, COLLAPSE_DELAY_MS } from "./auto-collapse.ts";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

function made(hasEnded: boolean): { folding: AutoCollapse; fold: ReturnType<typeof vi.fn> } {
  const fold = vi.fn();
  return { folding: new AutoCollapse(hasEnded, fold), fold };
}

test("what is history begins folded, what runs is open", () => {
  expect(made(true).folding.isOpen).toBe(false);
  expect(made(false).folding.isOpen).toBe(true);
});

test("a group folds two seconds after its end, and once", () => {
  const { folding, fold } = made(false);
  folding.update(false);
  vi.advanceTimersByTime(10 * COLLAPSE_DELAY_MS);
  folding.update(true);
  vi.advanceTimersByTime(COLLAPSE_DELAY_MS - 1);
  folding.update(true);
  expect(folding.isOpen).toBe(true);
  vi.advanceTimersByTime(1);
  expect([folding.isOpen, fold.mock.calls.length]).toEqual([false, 1]);
  folding.update(true);
  vi.advanceTimersByTime(10 * COLLAPSE_DELAY_MS);
  expect(fold).toHaveBeenCalledTimes(1);
});

test("a call that comes after the end puts the folding off", () => {
  const { folding } = made(false);
  folding.update(true);
  vi.advanceTimersByTime(COLLAPSE_DELAY_MS - 1);
  folding.update(false);
  vi.advanceTimersByTime(COLLAPSE_DELAY_MS);
  expect(folding.isOpen).toBe(true);
  folding.update(true);
  vi.advanceTimersByTime(COLLAPSE_DELAY_MS);
  expect(folding.isOpen).toBe(false);
});

test("one that the person opened again stays open", () => {
  const { folding, fold } = made(false);
  folding.update(true);
  vi.advanceTimersByTime(COLLAPSE_DELAY_MS);
  folding.toggle();
  folding.update(true);
  vi.advanceTimersByTime(10 * COLLAPSE_DELAY_MS);
  expect([folding.isOpen, fold.mock.calls.length]).toEqual([true, 1]);
});

test("one in which the person did something before its end stays open, and one that they closed closed", () => {
  const [touched, closed] = [made(false), made(false)];
  touched.folding.update(true);
  touched.folding.touch();
  closed.folding.toggle();
  closed.folding.update(true);
  vi.advanceTimersByTime(10 * COLLAPSE_DELAY_MS);
  expect([touched.folding.isOpen, closed.folding.isOpen]).toEqual([true, false]);
  expect(closed.fold).not.toHaveBeenCalled();
});

test("nothing happens any more to a group that was stopped", () => {
  const { folding, fold } = made(false);
  folding.update(true);
  folding.stop();
  vi.advanceTimersByTime(10 * COLLAPSE_DELAY_MS);
  expect(fold).not.toHaveBeenCalled();
});
