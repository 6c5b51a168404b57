import { expect, test } from "vitest";

import { recognitionOf, withSpeech, type Recognition } from "./speech-recognition.ts";

const said = (...words: string[]) => words.map((transcript) => ({ isFinal: true, 0: { transcript } }));

test("spoken words follow what was typed", () => {
  expect(withSpeech("", said("hello", " world"))).toBe("hello world");
  expect(withSpeech("Dear Ada,", said("hello"))).toBe("Dear Ada, hello");
  expect(withSpeech("Dear Ada,\n", said(" hello"))).toBe("Dear Ada,\nhello");
  expect(withSpeech("typed", said())).toBe("typed");
});

test("the recognition of the browser is found under either name", () => {
  const found = (() => null) as unknown as new () => Recognition;
  expect(recognitionOf({})).toBeNull();
  expect(recognitionOf({ webkitSpeechRecognition: found })).toBe(found);
  expect(recognitionOf({ SpeechRecognition: found })).toBe(found);
});
