import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Folding, LINGER_MS } from "./folding.ts";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

function made(hasEnded: boolean): { folding: Folding; fold: ReturnType<typeof vi.fn> } {
  const fold = vi.fn();
  return { folding: new Folding(hasEnded, fold), fold };
}

test("what is history begins folded, what runs is open", () => {
  expect(made(true).folding.isOpen).toBe(false);
  expect(made(false).folding.isOpen).toBe(true);
});

test("a group folds two seconds after its end, and once", () => {
  const { folding, fold } = made(false);
  folding.hear(false);
  vi.advanceTimersByTime(10 * LINGER_MS);
  folding.hear(true);
  vi.advanceTimersByTime(LINGER_MS - 1);
  folding.hear(true);
  expect(folding.isOpen).toBe(true);
  vi.advanceTimersByTime(1);
  expect([folding.isOpen, fold.mock.calls.length]).toEqual([false, 1]);
  folding.hear(true);
  vi.advanceTimersByTime(10 * LINGER_MS);
  expect(fold).toHaveBeenCalledTimes(1);
});

test("a call that comes after the end puts the folding off", () => {
  const { folding } = made(false);
  folding.hear(true);
  vi.advanceTimersByTime(LINGER_MS - 1);
  folding.hear(false);
  vi.advanceTimersByTime(LINGER_MS);
  expect(folding.isOpen).toBe(true);
  folding.hear(true);
  vi.advanceTimersByTime(LINGER_MS);
  expect(folding.isOpen).toBe(false);
});

test("one that the person opened again stays open", () => {
  const { folding, fold } = made(false);
  folding.hear(true);
  vi.advanceTimersByTime(LINGER_MS);
  folding.toggle();
  folding.hear(true);
  vi.advanceTimersByTime(10 * LINGER_MS);
  expect([folding.isOpen, fold.mock.calls.length]).toEqual([true, 1]);
});

test("one in which the person did something before its end stays open, and one that they closed closed", () => {
  const [touched, closed] = [made(false), made(false)];
  touched.folding.hear(true);
  touched.folding.touch();
  closed.folding.toggle();
  closed.folding.hear(true);
  vi.advanceTimersByTime(10 * LINGER_MS);
  expect([touched.folding.isOpen, closed.folding.isOpen]).toEqual([true, false]);
  expect(closed.fold).not.toHaveBeenCalled();
});

test("nothing happens any more to a group that was stopped", () => {
  const { folding, fold } = made(false);
  folding.hear(true);
  folding.stop();
  vi.advanceTimersByTime(10 * LINGER_MS);
  expect(fold).not.toHaveBeenCalled();
});
