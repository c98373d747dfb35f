package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	pb "anabranch/stubs/anabranch/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	callTime   = 20 * time.Second
	streamTime = 40 * time.Second
	letters    = 20_000
	// No server ever gave it.
	nowhere = 1 << 60
)

type refusal struct {
	Code   string `json:"code"`
	Domain string `json:"domain"`
	Reason string `json:"reason"`
}

type verdict struct {
	ID       string `json:"id"`
	Status   string `json:"status"`
	Position int64  `json:"position"`
}

type rejection struct {
	ID         string `json:"id"`
	Reason     string `json:"reason"`
	Table      string `json:"table"`
	Key        string `json:"key"`
	Constraint string `json:"constraint"`
	SQLState   string `json:"sqlstate"`
	ServerT    string `json:"server_t"`
}

type told struct {
	Unauthenticated refusal                      `json:"unauthenticated"`
	Tables          map[string]map[string]string `json:"tables"`
	Sent            []verdict                    `json:"sent"`
	Rejected        []rejection                  `json:"rejected"`
	Refused         refusal                      `json:"refused"`
	Pages           int                          `json:"pages"`
	Log             [][3]any                     `json:"log"`
	Effects         string                       `json:"effects"`
	Followed        verdict                      `json:"followed"`
	AsOf            int64                        `json:"as_of"`
	Columns         []string                     `json:"columns"`
	Rows            [][]*string                  `json:"rows"`
}

// client is a node with its database, its token and what it has seen.
type client struct {
	database string
	key      string
	ingest   pb.IngestServiceClient
	changes  pb.ChangeServiceClient
	snapshot pb.SnapshotServiceClient
	state    *pb.NodeState
	token    []byte
	schema   int64
	last     string
}

func session(vectors []vector) (any, error) {
	raw, err := content(vectors, "rows at their limits")
	if err != nil {
		return nil, err
	}
	limits := &pb.DbMutation{}
	if err := proto.Unmarshal(raw, limits); err != nil {
		return nil, err
	}
	ingest, err := dial("ANABRANCH_INGEST")
	if err != nil {
		return nil, err
	}
	defer ingest.Close()
	snapshot, err := dial("ANABRANCH_SNAPSHOT")
	if err != nil {
		return nil, err
	}
	defer snapshot.Close()
	c := &client{
		database: os.Getenv("ANABRANCH_DATABASE"),
		key:      os.Getenv("ANABRANCH_KEY"),
		ingest:   pb.NewIngestServiceClient(ingest),
		changes:  pb.NewChangeServiceClient(snapshot),
		snapshot: pb.NewSnapshotServiceClient(snapshot),
	}
	id, err := c.newID()
	if err != nil {
		return nil, err
	}
	c.state = &pb.NodeState{Node: &pb.Node{Id: id, Name: "stub-go"}}
	out := &told{}
	for _, step := range []func(*told) error{
		c.describe,
		func(out *told) error { return c.write(out, limits) },
		c.provoke,
		c.page,
		c.follow,
		c.pull,
	} {
		if err := step(out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func dial(variable string) (*grpc.ClientConn, error) {
	return grpc.NewClient(os.Getenv(variable), grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// call gives the context of a call: the key, and a deadline.
func (c *client) call(limit time.Duration) (context.Context, context.CancelFunc) {
	ctx := metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer "+c.key)
	return context.WithTimeout(ctx, limit)
}

// refused reads the one ErrorInfo of a failed call.
func refused(err error) (refusal, error) {
	if err == nil {
		return refusal{}, errors.New("a call that had to fail did not")
	}
	failed := status.Convert(err)
	for _, detail := range failed.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return refusal{codeName(failed.Code()), info.GetDomain(), info.GetReason()}, nil
		}
	}
	return refusal{}, fmt.Errorf("an error without ErrorInfo: %w", err)
}

// codeName gives a code's name as the specification writes it: INVALID_ARGUMENT, where Go says InvalidArgument.
func codeName(code codes.Code) string {
	var name strings.Builder
	for i, letter := range code.String() {
		if i > 0 && letter >= 'A' && letter <= 'Z' {
			name.WriteByte('_')
		}
		name.WriteRune(letter)
	}
	return strings.ToUpper(name.String())
}

func (c *client) describe(out *told) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	_, err := c.snapshot.Describe(ctx, &pb.DescribeRequest{DbName: c.database, NodeState: c.state})
	if out.Unauthenticated, err = refused(err); err != nil {
		return err
	}
	ctx, cancel = c.call(callTime)
	defer cancel()
	described, err := c.snapshot.Describe(ctx, &pb.DescribeRequest{DbName: c.database, NodeState: c.state})
	if err != nil {
		return err
	}
	c.schema = described.GetState().GetSchemaVersion()
	out.Tables = map[string]map[string]string{}
	for _, table := range described.GetTables() {
		out.Tables[table.GetName()] = map[string]string{}
		for _, column := range table.GetColumns() {
			out.Tables[table.GetName()][column.GetName()] = column.GetKind().String()
		}
	}
	return nil
}
