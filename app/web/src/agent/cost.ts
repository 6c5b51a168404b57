// The exact cost of a run by the price list of `GET /api/models`.

/** USD per million tokens as decimal strings, absent if unknown. */
export type Price = { inputUsdPerMillion?: string; outputUsdPerMillion?: string };
export type Prices = { default: string; items: readonly (Price & { model: string; provider: string; name: string; contextTokens?: number })[] };
export type TokenUsage = { inputTokens: number; outputTokens: number };

/** Decimal places of a price per million tokens, and of a cost. */
const PRICE_DIGITS = 12;
const COST_DIGITS = PRICE_DIGITS + 6;
const DECIMAL = /^(\d+)(?:\.(\d+))?$/;

/**
 * The cost in USD as a decimal string without trailing zeros, or null if a needed price is unknown. It is exact, so the costs of
 * parts add up to the cost of the whole. Throws RangeError for an invalid decimal or number of tokens.
 */
export function costOf(price: Price, used: TokenUsage): string | null {
  const input = costUnits(price.inputUsdPerMillion, used.inputTokens);
  const output = costUnits(price.outputUsdPerMillion, used.outputTokens);
  return input === null || output === null ? null : toDecimal(input + output, COST_DIGITS);
}

/** The price of a model (`provider:name`), or null if the list has none. */
export function priceOf(prices: Prices, model: string): Price | null {
  return prices.items.find((item) => item.model === model) ?? null;
}

/** In 10^-18 USD: a price of 10^-12 USD per million tokens is that per token. */
function costUnits(price: string | undefined, tokens: number): bigint | null {
  if (!Number.isSafeInteger(tokens) || tokens < 0) throw new RangeError(`${tokens} is no number of tokens.`);
  if (tokens === 0) return 0n;
  return price === undefined ? null : scaled(price, PRICE_DIGITS) * BigInt(tokens);
}

function scaled(decimal: string, digits: number): bigint {
  const parts = DECIMAL.exec(decimal);
  if (!parts) throw new RangeError(`“${decimal.slice(0, 40)}” is no decimal.`);
  const [, whole = "0", fraction = ""] = parts;
  return BigInt(whole + fraction.slice(0, digits).padEnd(digits, "0"));
}

function toDecimal(value: bigint, digits: number): string {
  const text = value.toString().padStart(digits + 1, "0");
  const fraction = text.slice(-digits).replace(/0+$/, "");
  return text.slice(0, -digits) + (fraction && `.${fraction}`);
}

/** Whether this is a response of `GET /api/models`. */
export function isPrices(value: unknown): value is Prices {
  if (typeof value !== "object" || value === null || !("items" in value) || !Array.isArray(value.items)) return false;
  return value.items.every((item: unknown) => typeof item === "object" && item !== null && "model" in item && typeof item.model === "string");
}
