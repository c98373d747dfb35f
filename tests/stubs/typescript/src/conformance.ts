// Vectors read and written again.
import { createRegistry, fromBinary, fromJson, toBinary, toJson, type JsonValue, type Message } from "@bufbuild/protobuf";
import { file_anabranch_v1_batch } from "anabranch-v1/anabranch/v1/batch_pb";
import { file_anabranch_v1_change } from "anabranch-v1/anabranch/v1/change_pb";
import { file_anabranch_v1_ingest } from "anabranch-v1/anabranch/v1/ingest_pb";
import { file_anabranch_v1_position } from "anabranch-v1/anabranch/v1/position_pb";
import { file_anabranch_v1_snapshot } from "anabranch-v1/anabranch/v1/snapshot_pb";
import { file_anabranch_v1_value } from "anabranch-v1/anabranch/v1/value_pb";
import { file_anabranch_v1_verdict } from "anabranch-v1/anabranch/v1/verdict_pb";

export interface Vector {
  name: string;
  message: string;
  bytes: string;
  json: JsonValue;
}

const registry = createRegistry(
  file_anabranch_v1_batch,
  file_anabranch_v1_change,
  file_anabranch_v1_ingest,
  file_anabranch_v1_position,
  file_anabranch_v1_snapshot,
  file_anabranch_v1_value,
  file_anabranch_v1_verdict,
);

/** The bytes of the vector with that name. */
export function content(vectors: Vector[], name: string): Uint8Array {
  const found = vectors.find((vector) => vector.name === name);
  if (found === undefined) {
    throw new Error(`no vector is called ${name}`);
  }
  return Buffer.from(found.bytes, "hex");
}

export function conformance(vectors: Vector[]): object {
  return { vectors: vectors.map(again) };
}

function again(vector: Vector): object {
  const kind = registry.getMessage(vector.message);
  if (kind === undefined) {
    throw new Error(`no message is called ${vector.message}`);
  }
  const hex = (message: Message): string => Buffer.from(toBinary(kind, message)).toString("hex");
  const decoded = fromBinary(kind, Buffer.from(vector.bytes, "hex"));
  return {
    name: vector.name,
    decoded: hex(decoded),
    parsed: hex(fromJson(kind, vector.json)),
    json: toJson(kind, decoded),
  };
}
