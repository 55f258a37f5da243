// Calls a gRPC server through @grpc/grpc-js: commands as lines of JSON on standard input, one line of answer each.
//
// Started with one argument, JSON: {target, roots} to read the contract from .proto files under these folders, or
// {target} to ask the server's reflection for it. ca, cert, key (paths) and token are optional.
//
// Commands: {op: "call", method, requests} sends all requests and answers {replies, error}.
// {op: "start", method}, {op: "send", request}, {op: "receive"}, {op: "finish"}, {op: "cancel"} hold one streaming
// call; receive answers {reply} or, at the call's end, {end: error or null}.
// Messages are protobuf's JSON with the field names of the .proto files.

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";
import reflection from "grpc-js-reflection-client";

const STATUS = "google.rpc.Status";
const DETAILS = ["ErrorInfo", "BadRequest", "RetryInfo", "QuotaFailure"].map((name) => `google.rpc.${name}`);
const FILES = ["rondel/v1/attention.proto", "rondel/v1/generation.proto", "google/rpc/error_details.proto"];
const JSON_NAMES = { keepCase: true, longs: String, enums: String, bytes: String };

const settings = JSON.parse(process.argv[2]);
const credentials = settings.ca
  ? grpc.credentials.createSsl(
      ...["ca", "key", "cert"].map((name) => (settings[name] ? readFileSync(settings[name]) : null)),
    )
  : grpc.credentials.createInsecure();
const metadata = new grpc.Metadata();
if (settings.token) metadata.set("authorization", `Bearer ${settings.token}`);

// Definitions by full name, of services and of messages.
const reflected = new reflection.GrpcReflection(settings.target, credentials);
let known = settings.roots
  ? protoLoader.loadSync(FILES, { ...JSON_NAMES, includeDirs: settings.roots })
  : {};

async function definition(name) {
  if (!(name in known) && !settings.roots) {
    const found = await reflected.getDescriptorBySymbol(name, metadata);
    known = { ...known, ...found.getPackageDefinition(JSON_NAMES) };
  }
  if (!(name in known)) throw new Error(`nothing is known of ${name}`);
  return known[name];
}

const clients = new Map();

async function client(service) {
  if (!clients.has(service)) {
    const Client = grpc.makeGenericClientConstructor(await definition(service), service);
    clients.set(service, new Client(settings.target, credentials));
  }
  return clients.get(service);
}

// A streaming or unary call, its answers in a queue that ends with {end}.
class Call {
  constructor(owner, method) {
    this.waiting = [];
    this.arrived = [];
    const { requestStream, responseStream } = owner[method];
    const whole = (error, reply) => {
      if (!error) this.#put({ reply });
      this.#put({ end: error });
    };
    this.begin = (request) => {
      const parameters = [...(requestStream ? [] : [request]), metadata, ...(responseStream ? [] : [whole])];
      this.call = owner[method](...parameters);
      if (responseStream) {
        this.call.on("data", (reply) => this.#put({ reply }));
        this.call.on("end", () => this.#put({ end: null }));
        this.call.on("error", (error) => this.#put({ end: error }));
      }
    };
    if (requestStream) this.begin();
    this.requestStream = requestStream;
  }

  send(request) {
    if (this.requestStream) this.call.write(request);
    else this.begin(request);
  }

  finish() {
    if (this.requestStream) this.call.end();
  }

  async receive() {
    const event = this.arrived.shift() ?? (await new Promise((resolve) => this.waiting.push(resolve)));
    if ("reply" in event) return { reply: await readable(event.reply) };
    return { end: event.end && (await failure(event.end)) };
  }

  #put(event) {
    if (this.waiting.length) this.waiting.shift()(event);
    else this.arrived.push(event);
  }
}

async function failure(error) {
  const [raw] = error.metadata?.get("grpc-status-details-bin") ?? [];
  if (error.code === undefined) throw error; // not a status: the stack itself broke down
  const status = raw ? (await definition(STATUS)).deserialize(raw) : { details: [] };
  return { code: error.code, message: error.details, details: (await readable(status)).details ?? [] };
}

// Replies with every google.protobuf.Any that holds an error detail decoded, as protobuf's JSON has it.
async function readable(value) {
  if (Array.isArray(value)) return Promise.all(value.map(readable));
  if (value === null || typeof value !== "object") return value;
  if (typeof value.type_url === "string") {
    const name = value.type_url.replace("type.googleapis.com/", "");
    if (!DETAILS.includes(name)) return value;
    const detail = (await definition(name)).deserialize(Buffer.from(value.value, "base64"));
    // Made from a descriptor, protobufjs has lost what a map is and shows its entries.
    if (Array.isArray(detail.metadata))
      detail.metadata = Object.fromEntries(detail.metadata.map((entry) => [entry.key, entry.value]));
    return { "@type": value.type_url, ...detail };
  }
  const entries = Object.entries(value).map(async ([name, part]) => [name, await readable(part)]);
  return Object.fromEntries(await Promise.all(entries));
}

async function begin(method) {
  const [service, name] = method.split("/");
  return new Call(await client(service), name);
}

let held;
const commands = {
  async call({ method, requests }) {
    const call = await begin(method);
    requests.forEach((request) => call.send(request));
    call.finish();
    const replies = [];
    for (;;) {
      const event = await call.receive();
      if (!("reply" in event)) return { replies, error: event.end };
      replies.push(event.reply);
    }
  },
  async start({ method }) {
    held = await begin(method);
    return {};
  },
  async send({ request }) {
    held.send(request);
    return {};
  },
  async receive() {
    return held.receive();
  },
  async finish() {
    held.finish();
    return {};
  },
  async cancel() {
    held.call.cancel();
    return {};
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  console.log(JSON.stringify(await commands[command.op](command)));
}
clients.forEach((made) => made.close());
process.exit(0);
