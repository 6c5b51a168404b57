import { expect, test } from "vitest";
import { quotedTool, toolLabel } from "./tool-labels.ts";

test("a built-in tool has words of its own", () => {
  expect(toolLabel("grep")).toEqual({ words: "Search in files", server: "" });
  expect(quotedTool("delete_file")).toBe("“Delete file”");
});

test("another tool is called by the words of its name, and with its server", () => {
  expect(toolLabel("book_table")).toEqual({ words: "Book table", server: "" });
  expect(toolLabel("mail__send_message")).toEqual({ words: "Send message", server: "mail" });
  expect(toolLabel("my_mail__send-message")).toEqual({ words: "Send message", server: "my_mail" });
  expect(quotedTool("mail__send_message")).toBe("“Send message” (mail)");
});

test("a tool that is not built in never reads like one that is", () => {
  expect(["edit-file", "Edit_file", "find_files", "open_web_page"].map((name) => toolLabel(name).words)).toEqual(["edit-file", "Edit_file", "find_files", "open_web_page"]);
});

test("a tool of a server never has the words of a built-in tool without its server", () => {
  expect(quotedTool("evil__delete_file")).toBe("“Delete file” (evil)");
});

test("a name without words stays as it is, with its invisible characters named", () => {
  expect(toolLabel("<img src=x>").words).toBe("<img src=x>");
  expect(toolLabel("del\u202eete").words).toContain("U+202E");
  expect(toolLabel("__proto__").words).toBe("__proto__");
  expect(toolLabel("constructor").words).toBe("Constructor");
});
