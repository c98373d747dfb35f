package main

import (
	"crypto/rand"
	"fmt"
	"math/big"
	"strings"
	"time"

	pb "anabranch/stubs/anabranch/v1"
	"google.golang.org/protobuf/proto"
)

const crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// newID draws a ULID that is greater than the last one: 48 bits of milliseconds and 80 of chance.
func (c *client) newID() (string, error) {
	chance, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 80))
	if err != nil {
		return "", err
	}
	number := new(big.Int).Lsh(big.NewInt(time.Now().UnixMilli()), 80)
	number.Or(number, chance)
	id := ulid(number)
	for id <= c.last {
		id = ulid(number.Add(number, new(big.Int).Lsh(big.NewInt(1), 80)))
	}
	c.last = id
	return id, nil
}

func ulid(number *big.Int) string {
	left, digit := new(big.Int).Set(number), new(big.Int)
	id := make([]byte, 26)
	for i := range id {
		left.DivMod(left, big.NewInt(32), digit)
		id[25-i] = crockford[digit.Int64()]
	}
	return string(id)
}

func text(content string) *pb.Value {
	return &pb.Value{Kind: &pb.Value_StringValue{StringValue: content}}
}

func mutation(kind pb.MutationType, columns []string, values ...*pb.Value) *pb.DbMutation {
	return &pb.DbMutation{Table: "kinds", Type: kind, Columns: columns, Rows: []*pb.Row{{Values: values}}}
}

// send makes a batch of each mutation, sends all in one call, and gives the verdicts in that order.
func (c *client) send(mutations ...*pb.DbMutation) ([]*pb.Verdict, error) {
	request := &pb.SendRequest{DbName: c.database, NodeState: c.state, NodeToken: c.token}
	ids, prev := []string{}, ""
	for _, one := range mutations {
		id, err := c.newID()
		if err != nil {
			return nil, err
		}
		batch := &pb.DbMutationBatch{
			Id: id, DbName: c.database, Mutations: []*pb.DbMutation{one}, Node: c.state.GetNode(), SchemaVersion: c.schema,
		}
		payload, err := proto.Marshal(batch)
		if err != nil {
			return nil, err
		}
		envelope := &pb.Envelope{Payload: payload, Basis: c.state.GetAcknowledged(), Prev: prev}
		request.Envelopes = append(request.Envelopes, envelope)
		ids, prev = append(ids, id), id
	}
	ctx, cancel := c.call(callTime)
	defer cancel()
	response, err := c.ingest.Send(ctx, request)
	if err != nil {
		return nil, err
	}
	c.token = response.GetNodeToken()
	c.state.GreatestSeen = response.GetState().GetSettled()
	if len(response.GetVerdicts()) != len(ids) {
		return nil, fmt.Errorf("%d verdicts on %d batches", len(response.GetVerdicts()), len(ids))
	}
	for i, v := range response.GetVerdicts() {
		if v.GetBatchId() != ids[i] {
			return nil, fmt.Errorf("the verdict on %s stands where %s was sent", v.GetBatchId(), ids[i])
		}
	}
	return response.GetVerdicts(), nil
}

func (c *client) note(out *told, verdicts []*pb.Verdict) {
	for _, v := range verdicts {
		name := strings.TrimPrefix(v.GetStatus().String(), "VERDICT_STATUS_")
		out.Sent = append(out.Sent, verdict{v.GetBatchId(), name, v.GetPosition()})
	}
}

func (c *client) write(out *told, limits *pb.DbMutation) error {
	if _, err := c.send(); err != nil {
		return err
	}
	mutations := []*pb.DbMutation{limits}
	for i := 1; i <= 5; i++ {
		values := []*pb.Value{text(fmt.Sprintf("long %d", i)), text(strings.Repeat("x", letters))}
		mutations = append(mutations, mutation(pb.MutationType_MUTATION_TYPE_INSERT, []string{"id", "t"}, values...))
	}
	verdicts, err := c.send(mutations...)
	if err != nil {
		return err
	}
	c.note(out, verdicts)
	verdicts, err = c.send(update("row 0", "updated \U0001f600"))
	if err != nil {
		return err
	}
	c.note(out, verdicts)
	return nil
}

func update(id, content string) *pb.DbMutation {
	return mutation(pb.MutationType_MUTATION_TYPE_UPDATE, []string{"id", "t"}, text(id), text(content))
}

func (c *client) provoke(out *told) error {
	negative := &pb.Value{Kind: &pb.Value_Int64Value{Int64Value: -1}}
	verdicts, err := c.send(
		mutation(pb.MutationType_MUTATION_TYPE_INSERT, []string{"id", "qty"}, text("bad"), negative),
		mutation(pb.MutationType_MUTATION_TYPE_INSERT, []string{"id"}, text("row 0")),
	)
	if err != nil {
		return err
	}
	for _, v := range verdicts {
		if v.GetStatus() != pb.VerdictStatus_VERDICT_STATUS_REJECTED || len(v.GetMutations()) != 1 {
			return fmt.Errorf("not rejected with one mutation: %v", v)
		}
		refused := v.GetMutations()[0]
		one := rejection{
			ID:         v.GetBatchId(),
			Reason:     strings.TrimPrefix(v.GetReason().String(), "REASON_"),
			Table:      refused.GetTable(),
			Constraint: v.GetConstraint(),
			SQLState:   v.GetSqlstate(),
		}
		if len(refused.GetKey()) == 1 {
			one.Key = refused.GetKey()[0].GetStringValue()
		}
		for i, column := range refused.GetServerRow().GetColumns() {
			if column == "t" {
				one.ServerT = refused.GetServerRow().GetValues()[i].GetStringValue()
			}
		}
		out.Rejected = append(out.Rejected, one)
	}
	ctx, cancel := c.call(callTime)
	defer cancel()
	_, err = c.changes.Get(ctx, &pb.GetRequest{DbName: c.database, NodeState: c.state, After: nowhere})
	out.Refused, err = refused(err)
	return err
}
