// An OpenID Provider for tests: it signs users in as the request's `login_hint` (or as the first account), with consent to everything.
//
// Its settings are JSON in the first argument: { clients, accounts, audience, conform }. It prints {"issuer": …} on one line
// once it listens, answers each line of its input with one line, and ends with its input.
import { generateKeyPairSync, randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import Provider from "oidc-provider";

const settings = JSON.parse(process.argv[2]);
const answered = {};
let keys = freshKeys();
let provider;
let answer;

function freshKeys() {
  const pairs = {
    RS256: generateKeyPairSync("rsa", { modulusLength: 2048 }),
    ES256: generateKeyPairSync("ec", { namedCurve: "P-256" }),
    EdDSA: generateKeyPairSync("ed25519"),
  };
  return Object.entries(pairs).map(([alg, pair]) => ({
    ...pair.privateKey.export({ format: "jwk" }), alg, use: "sig", kid: randomUUID(),
  }));
}

function open(issuer) {
  provider = new Provider(issuer, {
    clients: settings.clients,
    jwks: { keys },
    cookies: { keys: ["not a secret"] },
    claims: { openid: ["sub"], email: ["email", "email_verified"], profile: ["name"] },
    conformIdTokenClaims: settings.conform,
    enabledJWA: { idTokenSigningAlgValues: ["RS256", "ES256", "EdDSA"] },
    findAccount: (_, id) => id in settings.accounts && { accountId: id, claims: () => ({ sub: id, ...settings.accounts[id] }) },
    interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
    ttl: { AccessToken: 3600, AuthorizationCode: 60, ClientCredentials: 3600, Grant: 3600, IdToken: 3600, Interaction: 600, Session: 3600 },
    features: {
      devInteractions: { enabled: false },
      clientCredentials: { enabled: true },
      rpInitiatedLogout: { enabled: true },
      resourceIndicators: {
        enabled: true,
        useGrantedResource: () => true,
        getResourceServerInfo: () => ({
          scope: "api", audience: settings.audience, accessTokenFormat: "jwt", accessTokenTTL: 3600,
          jwt: { sign: { alg: "RS256" } },
        }),
      },
    },
  });
  provider.on("server_error", (_, error) => console.error(error));
  answer = provider.callback();
}

async function interact(request, response) {
  const { prompt, params, session, grantId } = await provider.interactionDetails(request, response);
  if (prompt.name === "login") {
    return provider.interactionFinished(request, response, { login: { accountId: params.login_hint ?? Object.keys(settings.accounts)[0] } });
  }
  const { Grant } = provider;
  const grant = grantId ? await Grant.find(grantId) : new Grant({ accountId: session.accountId, clientId: params.client_id });
  const { missingOIDCScope, missingOIDCClaims, missingResourceScopes } = prompt.details;
  if (missingOIDCScope) grant.addOIDCScope(missingOIDCScope.join(" "));
  if (missingOIDCClaims) grant.addOIDCClaims(missingOIDCClaims);
  for (const [resource, scopes] of Object.entries(missingResourceScopes ?? {})) grant.addResourceScope(resource, scopes.join(" "));
  const consent = { grantId: await grant.save() };
  return provider.interactionFinished(request, response, { consent }, { mergeWithLastSubmission: true });
}

const commands = {
  rotate: () => { keys = freshKeys(); open(provider.issuer); return {}; },
  answered: () => answered,
};

const server = createServer((request, response) => {
  const { pathname } = new URL(request.url, "http://provider");
  answered[pathname] = (answered[pathname] ?? 0) + 1;
  if (!pathname.startsWith("/interaction/")) return answer(request, response);
  return interact(request, response).catch((error) => { console.error(error); response.writeHead(500).end(); });
});

server.listen(0, "127.0.0.1", () => {
  open(`http://127.0.0.1:${server.address().port}`);
  console.log(JSON.stringify({ issuer: provider.issuer }));
});
const lines = createInterface({ input: process.stdin });
lines.on("line", (command) => console.log(JSON.stringify(commands[command]())));
lines.on("close", () => process.exit());
