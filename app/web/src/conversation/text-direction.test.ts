import { expect, it } from "vitest";

import { textDirection } from "./text-direction.ts";

it.each([
  ["A lease", "ltr"],
  ["## عقود الإيجار", "rtl"],
  ["1. **שלום** world", "rtl"],
  ["```python\nimport os\n```\n\nهذا هو", "rtl"],
  ["`lease.renew()` يجدد", "rtl"],
  ["<details><summary>لماذا؟</summary>", "rtl"],
  ["> [!WARNING]\n> تحقق", "rtl"],
  ["https://example.com هنا", "rtl"],
  ["[توثيق](https://example.com) and more", "rtl"],
  ["```python\nimport os", undefined],
  ["12 + 30", undefined],
] as const)("%j runs %s", (text, direction) => expect(textDirection(text)).toBe(direction));
