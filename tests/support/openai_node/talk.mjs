// Talks to the server at OPENAI_BASE_URL with OpenAI's own client, unmodified, and prints the results as JSON.
import OpenAI from "openai";

const client = new OpenAI({ maxRetries: 0 });
const model = "khala";
const tools = [
  {
    type: "function",
    function: { name: "weather", parameters: { type: "object", properties: { city: { type: "string" } } } },
  },
];
const results = {};

results.models = [];
for await (const listed of client.models.list()) results.models.push(listed.id);

const whole = await client.chat.completions.create({
  model,
  messages: [{ role: "user", content: "/echo En taro Adun" }],
});
results.whole = whole.choices[0].message.content;

const stream = await client.chat.completions.create({
  model,
  messages: [{ role: "user", content: "/words=50 /pace=0" }],
  stream: true,
  stream_options: { include_usage: true },
});
results.streamed = "";
for await (const chunk of stream) {
  results.streamed += chunk.choices[0]?.delta?.content ?? "";
  results.usage = chunk.usage ?? results.usage;
}

const messages = [{ role: "user", content: '/call weather {"city": "Aiur"} /say Fine.' }];
const requested = await client.chat.completions.create({ model, messages, tools });
const [call] = requested.choices[0].message.tool_calls;
results.call = { name: call.function.name, args: JSON.parse(call.function.arguments), why: requested.choices[0].finish_reason };
messages.push(requested.choices[0].message, { role: "tool", tool_call_id: call.id, content: "sunny" });
results.answer = (await client.chat.completions.create({ model, messages, tools })).choices[0].message.content;

const agent = await client.chat.completions.create(
  { model, messages: [{ role: "user", content: "/call todo_list {} /then /call todo_list {} /say Done." }], stream: true },
  { headers: { "x-autopilot": "true", "x-autopilot-events": "false" } },
);
results.agent = "";
for await (const chunk of agent) results.agent += chunk.choices[0]?.delta?.content ?? "";

try {
  await client.chat.completions.create({ model: "nobody:knows", messages });
} catch (error) {
  results.error = { status: error.status, code: error.code, param: error.param };
}
console.log(JSON.stringify(results));
