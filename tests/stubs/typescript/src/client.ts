// A node with its database, its token and what it has seen.
import { randomBytes } from "node:crypto";
import { create, toBinary } from "@bufbuild/protobuf";
import { createClient, type Client as Calls, type Interceptor } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import {
  DbMutationBatchSchema,
  DbMutationSchema,
  EnvelopeSchema,
  MutationType,
  NodeSchema,
  type DbMutation,
} from "anabranch-v1/anabranch/v1/batch_pb";
import { ChangeService } from "anabranch-v1/anabranch/v1/change_pb";
import { IngestService } from "anabranch-v1/anabranch/v1/ingest_pb";
import { NodeStateSchema, type NodeState } from "anabranch-v1/anabranch/v1/position_pb";
import { SnapshotService } from "anabranch-v1/anabranch/v1/snapshot_pb";
import { ValueSchema, type Value } from "anabranch-v1/anabranch/v1/value_pb";
import type { Verdict } from "anabranch-v1/anabranch/v1/verdict_pb";

export const CALL = { timeoutMs: 20_000 };
export const STREAM = { timeoutMs: 40_000 };
const CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";

export function setting(name: string): string {
  const value = process.env[name];
  if (value === undefined) {
    throw new Error(`${name} is not set`);
  }
  return value;
}

const authorize: Interceptor = (next) => (request) => {
  request.header.set("authorization", `Bearer ${setting("ANABRANCH_KEY")}`);
  return next(request);
};

function transport(address: string, interceptors: Interceptor[]) {
  return createGrpcTransport({ baseUrl: `http://${setting(address)}`, interceptors });
}

export class Client {
  readonly database = setting("ANABRANCH_DATABASE");
  readonly ingest: Calls<typeof IngestService> = createClient(IngestService, transport("ANABRANCH_INGEST", [authorize]));
  readonly changes: Calls<typeof ChangeService>;
  readonly snapshot: Calls<typeof SnapshotService>;
  readonly nobody: Calls<typeof SnapshotService>;
  readonly state: NodeState;
  schema = 0n;
  private token: Uint8Array = new Uint8Array();
  private last = 0n;

  constructor() {
    const reading = transport("ANABRANCH_SNAPSHOT", [authorize]);
    this.changes = createClient(ChangeService, reading);
    this.snapshot = createClient(SnapshotService, reading);
    this.nobody = createClient(SnapshotService, transport("ANABRANCH_SNAPSHOT", []));
    this.state = create(NodeStateSchema, { node: create(NodeSchema, { id: this.newId(), name: "stub-typescript" }) });
  }

  /** A ULID that is greater than the last one: 48 bits of milliseconds and 80 of chance. */
  newId(): string {
    const drawn = (BigInt(Date.now()) << 80n) | BigInt(`0x${randomBytes(10).toString("hex")}`);
    this.last = drawn > this.last ? drawn : this.last + 1n;
    let id = "";
    for (let shift = 125n; shift >= 0n; shift -= 5n) {
      id += CROCKFORD.charAt(Number((this.last >> shift) & 31n));
    }
    return id;
  }

  /** A batch of each mutation, all in one call; the verdicts in that order. */
  async send(...mutations: DbMutation[]): Promise<Verdict[]> {
    const ids = mutations.map(() => this.newId());
    const envelopes = mutations.map((mutation, i) => {
      const batch = create(DbMutationBatchSchema, {
        id: ids[i],
        dbName: this.database,
        mutations: [mutation],
        node: this.state.node,
        schemaVersion: this.schema,
      });
      const payload = toBinary(DbMutationBatchSchema, batch);
      return create(EnvelopeSchema, { payload, basis: this.state.acknowledged, prev: ids[i - 1] ?? "" });
    });
    const { database: dbName, state: nodeState, token: nodeToken } = this;
    const response = await this.ingest.send({ dbName, nodeState, nodeToken, envelopes }, CALL);
    this.token = response.nodeToken;
    this.state.greatestSeen = response.state?.settled;
    if (response.verdicts.map((verdict) => verdict.batchId).join() !== ids.join()) {
      throw new Error("not one verdict a batch, in their order");
    }
    return response.verdicts;
  }
}

export function text(value: string): Value {
  return create(ValueSchema, { kind: { case: "stringValue", value } });
}

export function insert(columns: string[], ...values: Value[]): DbMutation {
  return create(DbMutationSchema, { table: "kinds", type: MutationType.INSERT, columns, rows: [{ values }] });
}

export function update(id: string, content: string): DbMutation {
  const rows = [{ values: [text(id), text(content)] }];
  return create(DbMutationSchema, { table: "kinds", type: MutationType.UPDATE, columns: ["id", "t"], rows });
}
