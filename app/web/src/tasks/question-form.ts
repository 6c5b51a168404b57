// The form of a question that a running tool asks: its fields, from a JSON schema of flat properties, and their contents.

export type FieldKind = "text" | "number" | "checkbox" | "choice" | "choices";
export type FieldValue = string | boolean | readonly string[];
export type FormValues = Readonly<Record<string, FieldValue>>;

export type FormField = {
  name: string;
  label: string;
  hint: string;
  kind: FieldKind;
  /** The type of the `input` of a text or number. */
  inputType: string;
  isRequired: boolean;
  options: readonly { value: string; label: string }[];
  /** Attributes of the `input`: bounds of a number or of a text's length. */
  bounds: Readonly<Record<string, number | string>>;
  initial: FieldValue;
};

type Schema = Readonly<Record<string, unknown>>;

const INPUT_TYPES: Readonly<Record<string, string>> = { email: "email", uri: "url", date: "date", "date-time": "datetime-local" };

const isObject = (value: unknown): value is Schema => typeof value === "object" && value !== null && !Array.isArray(value);
export const text = (value: unknown): string => (typeof value === "string" ? value : "");

/** The fields of the form, in the order of these names. The server has checked the schema; anything else is a field of text. */
export function formFields(schema: unknown, names: unknown = []): FormField[] {
  const { properties, required } = isObject(schema) ? schema : {};
  const isRequired = (name: string) => Array.isArray(required) && required.includes(name);
  const order = Array.isArray(names) ? names : [];
  const entries = Object.entries(isObject(properties) ? properties : {}).toSorted(([one], [other]) => order.indexOf(one) - order.indexOf(other));
  return entries.map(([name, field]) => formField(name, isObject(field) ? field : {}, isRequired(name)));
}

function formField(name: string, field: Schema, isRequired: boolean): FormField {
  const kind = kindOf(field);
  return {
    name,
    label: text(field.title) || name,
    hint: text(field.description),
    kind,
    inputType: kind === "number" ? "number" : (INPUT_TYPES[text(field.format)] ?? "text"),
    isRequired,
    options: optionsOf(kind === "choices" && isObject(field.items) ? field.items : field),
    bounds: boundsOf(field, kind),
    initial: initialOf(field.default, kind),
  };
}

function kindOf(field: Schema): FieldKind {
  if (field.type === "boolean") return "checkbox";
  if (field.type === "number" || field.type === "integer") return "number";
  if (field.type === "array") return "choices";
  return Array.isArray(field.enum) || Array.isArray(field.oneOf) ? "choice" : "text";
}

function optionsOf(field: Schema): { value: string; label: string }[] {
  const titled = field.oneOf ?? field.anyOf;
  if (Array.isArray(titled)) return titled.filter(isObject).map((one) => ({ value: text(one.const), label: text(one.title) || text(one.const) }));
  const names = Array.isArray(field.enumNames) ? field.enumNames : [];
  return (Array.isArray(field.enum) ? field.enum : []).map((value, index) => ({ value: text(value), label: text(names[index]) || text(value) }));
}

function boundsOf(field: Schema, kind: FieldKind): Record<string, number | string> {
  const names: Record<string, string> = kind === "number" ? { minimum: "min", maximum: "max" } : kind === "text" ? { minLength: "minlength", maxLength: "maxlength" } : {};
  const bounds = Object.entries(names).flatMap(([keyword, attribute]) => (typeof field[keyword] === "number" ? [[attribute, field[keyword]] as const] : []));
  return { ...Object.fromEntries(bounds), ...(kind === "number" && { step: field.type === "integer" ? 1 : "any" }) };
}

function initialOf(value: unknown, kind: FieldKind): FieldValue {
  if (kind === "checkbox") return value === true;
  if (kind === "choices") return Array.isArray(value) ? value.map(text) : [];
  return typeof value === "number" ? String(value) : text(value);
}

/** The contents for the server. Empty fields that are not required are left out. */
export function formContents(fields: readonly FormField[], values: FormValues): Record<string, unknown> {
  const contents: Record<string, unknown> = {};
  for (const field of fields) {
    const value = values[field.name] ?? field.initial;
    if (field.kind === "checkbox") contents[field.name] = value === true;
    else if (field.kind === "choices") contents[field.name] = typeof value === "object" ? [...value] : [];
    else if (value !== "" || (field.isRequired && field.kind === "text")) contents[field.name] = contentOf(field, String(value));
  }
  return contents;
}

function contentOf({ kind, inputType }: FormField, value: string): unknown {
  if (kind === "number") return Number(value);
  return inputType === "datetime-local" && value !== "" ? new Date(value).toISOString() : value;
}

/** The host of the address, which people should read before they open it; empty for an address that is not one of HTTP. */
export function hostOf(url: unknown): string {
  try {
    const { protocol, host } = new URL(text(url));
    return protocol === "https:" || protocol === "http:" ? host : "";
  } catch {
    return "";
  }
}
