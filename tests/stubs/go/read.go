package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

	pb "anabranch/stubs/anabranch/v1"
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
)

const (
	pageBytes = 4096
	mostPages = 1000
)

// page reads the log to its head. A group may be split over pages, a batch over parts of a group, an effect over
// parts of a batch.
func (c *client) page(out *told) error {
	digest := sha256.New()
	var token, begun []byte
	for out.Pages = 0; out.Pages < mostPages; {
		ctx, cancel := c.call(callTime)
		request := &pb.GetRequest{DbName: c.database, NodeState: c.state, PageToken: token, MaxBytes: pageBytes}
		response, err := c.changes.Get(ctx, request)
		cancel()
		if err != nil {
			return err
		}
		out.Pages++
		for _, group := range response.GetPage().GetGroups() {
			for _, batch := range group.GetBatches() {
				row := len(out.Log) - 1
				if row < 0 || out.Log[row][1] != batch.GetId() {
					out.Log = append(out.Log, [3]any{group.GetPosition(), batch.GetId(), 0})
					row++
				}
				for i, effect := range batch.GetEffects() {
					begun = append(begun, effect...)
					if batch.GetEffectIncomplete() && i == len(batch.GetEffects())-1 {
						break
					}
					var length [4]byte
					binary.BigEndian.PutUint32(length[:], uint32(len(begun)))
					digest.Write(length[:])
					digest.Write(begun)
					begun = nil
					out.Log[row][2] = out.Log[row][2].(int) + 1
				}
			}
		}
		if reached := response.GetPage().GetReached(); reached != nil {
			c.state.Acknowledged = reached.GetServerTimestampMs()
			c.state.GreatestSeen = reached
		}
		if token = response.GetNextPageToken(); len(token) == 0 {
			out.Effects = hex.EncodeToString(digest.Sum(nil))
			return nil
		}
	}
	return fmt.Errorf("no end after %d pages", mostPages)
}

func (c *client) follow(out *told) error {
	ctx, cancel := c.call(streamTime)
	defer cancel()
	request := &pb.SubscribeRequest{DbName: c.database, NodeState: c.state, After: c.state.GetAcknowledged()}
	stream, err := c.changes.Subscribe(ctx, request)
	if err != nil {
		return err
	}
	if _, err := stream.Recv(); err != nil {
		return err
	}
	verdicts, err := c.send(update("row 1", "followed"))
	if err != nil {
		return err
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, group := range response.GetPage().GetGroups() {
			for _, batch := range group.GetBatches() {
				if batch.GetId() == verdicts[0].GetBatchId() {
					out.Followed = verdict{batch.GetId(), "APPLIED", group.GetPosition()}
					return nil
				}
			}
		}
	}
}

func (c *client) pull(out *told) error {
	ctx, cancel := c.call(streamTime)
	defer cancel()
	request := &pb.PullRequest{
		DbName: c.database, NodeState: c.state, Required: []*pb.RequiredTable{{Table: "kinds"}},
	}
	stream, err := c.snapshot.Pull(ctx, request)
	if err != nil {
		return err
	}
	var chunk []byte
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		out.AsOf = response.GetAsOf().GetServerTimestampMs()
		chunk = append(chunk, response.GetArrowIpc()...)
		if response.GetArrowIpcIncomplete() || len(chunk) == 0 {
			continue
		}
		if err := out.read(chunk); err != nil {
			return err
		}
		chunk = nil
	}
}

// read adds the rows of a whole Arrow IPC stream.
func (out *told) read(chunk []byte) error {
	reader, err := ipc.NewReader(bytes.NewReader(chunk))
	if err != nil {
		return err
	}
	defer reader.Release()
	out.Columns = nil
	for _, field := range reader.Schema().Fields() {
		out.Columns = append(out.Columns, field.Name)
	}
	for reader.Next() {
		batch := reader.RecordBatch()
		for i := range int(batch.NumRows()) {
			row := []*string{}
			for _, column := range batch.Columns() {
				cell, err := textOf(column, i)
				if err != nil {
					return err
				}
				row = append(row, cell)
			}
			out.Rows = append(out.Rows, row)
		}
	}
	return reader.Err()
}

func textOf(column arrow.Array, i int) (*string, error) {
	if column.IsNull(i) {
		return nil, nil
	}
	var cell string
	switch column := column.(type) {
	case *array.Boolean:
		cell = strconv.FormatBool(column.Value(i))
	case *array.Int64:
		cell = strconv.FormatInt(column.Value(i), 10)
	case *array.Float64:
		cell = fmt.Sprintf("%016x", math.Float64bits(column.Value(i)))
	case *array.Binary:
		cell = hex.EncodeToString(column.Value(i))
	case *array.Timestamp:
		cell = strconv.FormatInt(int64(column.Value(i)), 10)
	case *array.Date32:
		cell = strconv.FormatInt(int64(column.Value(i)), 10)
	case *array.Time64:
		cell = strconv.FormatInt(int64(column.Value(i)), 10)
	case *array.String:
		cell = column.Value(i)
	default:
		return nil, fmt.Errorf("a column of type %s", column.DataType())
	}
	return &cell, nil
}
