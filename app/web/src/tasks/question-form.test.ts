import { describe, expect, it } from "vitest";
import { formContents, formFields, hostOf } from "./question-form.ts";

const SCHEMA = {
  type: "object",
  properties: {
    name: { type: "string", title: "Name", description: "Of the pylon", minLength: 1, maxLength: 20 },
    mail: { type: "string", format: "email" },
    count: { type: "integer", minimum: 1, maximum: 9, default: 2 },
    share: { type: "number" },
    warp: { type: "boolean", default: true },
    side: { type: "string", enum: ["l", "r"], enumNames: ["Left", "Right"] },
    color: { type: "string", oneOf: [{ const: "b", title: "Blue" }, { const: "g" }] },
    units: { type: "array", items: { type: "string", enum: ["probe", "zealot"] }, default: ["probe"] },
  },
  required: ["name"],
};

describe("the form of a tool's question", () => {
  it("has a field for each property", () => {
    const fields = formFields(SCHEMA);
    expect(fields.map(({ name, kind, inputType }) => [name, kind, inputType])).toEqual([
      ["name", "text", "text"],
      ["mail", "text", "email"],
      ["count", "number", "number"],
      ["share", "number", "number"],
      ["warp", "checkbox", "text"],
      ["side", "choice", "text"],
      ["color", "choice", "text"],
      ["units", "choices", "text"],
    ]);
    expect(fields[0]).toMatchObject({ label: "Name", hint: "Of the pylon", isRequired: true, bounds: { minlength: 1, maxlength: 20 } });
    expect(fields[2]).toMatchObject({ bounds: { min: 1, max: 9, step: 1 }, initial: "2", isRequired: false });
    expect(fields[3]?.bounds).toEqual({ step: "any" });
    expect(fields[5]?.options).toEqual([{ value: "l", label: "Left" }, { value: "r", label: "Right" }]);
    expect(fields[6]?.options).toEqual([{ value: "b", label: "Blue" }, { value: "g", label: "g" }]);
  });

  it("leaves out empty fields that are not required, and sends values of their types", () => {
    const fields = formFields(SCHEMA);
    expect(formContents(fields, { name: "Nexus" })).toEqual({ name: "Nexus", count: 2, warp: true, units: ["probe"] });
    const all = { name: "", mail: "a@b.c", count: "7", share: "0.5", warp: false, side: "r", color: "g", units: [] };
    expect(formContents(fields, all)).toEqual({ name: "", mail: "a@b.c", count: 7, share: 0.5, warp: false, side: "r", color: "g", units: [] });
  });

  it("has the fields in the order of the server, which Postgres does not store", () => {
    const names = Object.keys(SCHEMA.properties);
    const properties = Object.fromEntries(Object.entries(SCHEMA.properties).toReversed());
    expect(formFields({ ...SCHEMA, properties }, names).map(({ name }) => name)).toEqual(names);
  });

  it("is empty for anything that is no schema", () => {
    expect(formFields(undefined)).toEqual([]);
    expect(formFields({ properties: [] })).toEqual([]);
    expect(formFields({ properties: { a: 1 } })).toMatchObject([{ name: "a", kind: "text" }]);
  });

  it("names the host of an address of HTTP, and of no other", () => {
    expect(hostOf("https://auth.example.com:8443/x")).toBe("auth.example.com:8443");
    expect(hostOf("javascript:alert(1)")).toBe("");
    expect(hostOf(undefined)).toBe("");
  });
});
