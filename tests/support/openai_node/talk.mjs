// Talks to the server at OPENAI_BASE_URL with OpenAI's own client, unmodified, and prints what it has heard as JSON.
import OpenAI from "openai";

const client = new OpenAI({ maxRetries: 0 });
const model = "khala";
const tools = [
  {
    type: "function",
    function: { name: "weather", parameters: { type: "object", properties: { city: { type: "string" } } } },
  },
];
const heard = {};

heard.models = [];
for await (const one of client.models.list()) heard.models.push(one.id);

const whole = await client.chat.completions.create({
  model,
  messages: [{ role: "user", content: "/echo En taro Adun" }],
});
heard.whole = whole.choices[0].message.content;

const stream = await client.chat.completions.create({
  model,
  messages: [{ role: "user", content: "/words=50 /pace=0" }],
  stream: true,
  stream_options: { include_usage: true },
});
heard.streamed = "";
for await (const chunk of stream) {
  heard.streamed += chunk.choices[0]?.delta?.content ?? "";
  heard.usage = chunk.usage ?? heard.usage;
}

const messages = [{ role: "user", content: '/call weather {"city": "Aiur"} /say Fine.' }];
const asked = await client.chat.completions.create({ model, messages, tools });
const [call] = asked.choices[0].message.tool_calls;
heard.call = { name: call.function.name, args: JSON.parse(call.function.arguments), why: asked.choices[0].finish_reason };
messages.push(asked.choices[0].message, { role: "tool", tool_call_id: call.id, content: "sunny" });
heard.answer = (await client.chat.completions.create({ model, messages, tools })).choices[0].message.content;

const agent = await client.chat.completions.create(
  { model, messages: [{ role: "user", content: "/call todo_list {} /then /call todo_list {} /say Done." }], stream: true },
  { headers: { "x-autopilot": "true", "x-autopilot-events": "false" } },
);
heard.agent = "";
for await (const chunk of agent) heard.agent += chunk.choices[0]?.delta?.content ?? "";

try {
  await client.chat.completions.create({ model: "nobody:knows", messages });
} catch (error) {
  heard.error = { status: error.status, code: error.code, param: error.param };
}
console.log(JSON.stringify(heard));
