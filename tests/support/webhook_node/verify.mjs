// Verifies a request with the package of the Standard Webhooks specification, and prints its type.
import { Webhook } from "standardwebhooks";

const { SECRET, HEADERS, BODY } = process.env;
const event = new Webhook(SECRET).verify(BODY, JSON.parse(HEADERS));
console.log(JSON.stringify({ type: event.type }));
