package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

type vector struct {
	Name    string          `json:"name"`
	Message string          `json:"message"`
	Bytes   string          `json:"bytes"`
	JSON    json.RawMessage `json:"json"`
}

type readVector struct {
	Name    string          `json:"name"`
	Decoded string          `json:"decoded"`
	Parsed  string          `json:"parsed"`
	JSON    json.RawMessage `json:"json"`
}

func readVectors(file string) ([]vector, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var vectors []vector
	return vectors, json.Unmarshal(content, &vectors)
}

// content gives the bytes of the vector with that name.
func content(vectors []vector, name string) ([]byte, error) {
	for _, v := range vectors {
		if v.Name == name {
			return hex.DecodeString(v.Bytes)
		}
	}
	return nil, fmt.Errorf("no vector is called %q", name)
}

func conformance(vectors []vector) (any, error) {
	read := make([]readVector, 0, len(vectors))
	for _, v := range vectors {
		one, err := again(v)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", v.Name, err)
		}
		read = append(read, one)
	}
	return map[string]any{"vectors": read}, nil
}

func again(v vector) (readVector, error) {
	out := readVector{Name: v.Name}
	kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(v.Message))
	if err != nil {
		return out, err
	}
	raw, err := hex.DecodeString(v.Bytes)
	if err != nil {
		return out, err
	}
	message := kind.New().Interface()
	if err := proto.Unmarshal(raw, message); err != nil {
		return out, err
	}
	if out.JSON, err = protojson.Marshal(message); err != nil {
		return out, err
	}
	if out.Decoded, err = encoded(message); err != nil {
		return out, err
	}
	parsed := kind.New().Interface()
	if err := protojson.Unmarshal(v.JSON, parsed); err != nil {
		return out, err
	}
	out.Parsed, err = encoded(parsed)
	return out, err
}

func encoded(message proto.Message) (string, error) {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	return hex.EncodeToString(raw), err
}
