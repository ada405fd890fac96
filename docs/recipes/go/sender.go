// A sender that tries again, on a client that openapi-generator makes of openapi.json. Copy it.
//
//	go run . ADDRESS TABLE ROW...    (ICEDB_TOKEN: a bearer token)
package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	icedb "example.com/icedb"
)

// NewBatchID returns a UUIDv7. A batch may be sent under it for the table's retry window: 7.5 minutes by default.
func NewBatchID(now time.Time) string {
	var id [16]byte
	binary.BigEndian.PutUint64(id[:8], uint64(now.UnixMilli())<<16)
	rand.Read(id[6:])
	id[6] = 0x70 | id[6]&0x0f
	id[8] = 0x80 | id[8]&0x3f
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

// Connect returns a client of a front end, or of a console.
func Connect(address, token string) *icedb.APIClient {
	config := icedb.NewConfiguration()
	config.Servers = icedb.ServerConfigurations{{URL: address}}
	config.OperationServers = nil
	if token != "" {
		config.AddDefaultHeader("Authorization", "Bearer "+token)
	}
	config.HTTPClient = &http.Client{Timeout: 30 * time.Second}
	return icedb.NewAPIClient(config)
}

// Send sends rows as one batch, again under the same id until it is answered: then it is durable, and counts once. An
// error once ctx is done does not say that nothing arrived.
func Send(ctx context.Context, client *icedb.APIClient, table, batchID string, rows any) (*icedb.Accepted, error) {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 10*time.Second) {
		accepted, answer, err := client.BatchesAPI.SendBatch(ctx, table).IdempotencyKey(batchID).Body(rows).Execute()
		if err == nil {
			return accepted, nil
		}
		wait := pause
		if answer != nil {
			switch answer.StatusCode {
			case 408, 429, 500, 502, 503, 504:
			default:
				return nil, explain(err)
			}
			wait = max(wait, retryAfter(err))
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), explain(err))
		case <-time.After(wait):
		}
	}
}

func problemOf(err error) (icedb.Problem, bool) {
	var failed *icedb.GenericOpenAPIError
	if !errors.As(err, &failed) {
		return icedb.Problem{}, false
	}
	problem, ok := failed.Model().(icedb.Problem)
	return problem, ok
}

func explain(err error) error {
	if problem, ok := problemOf(err); ok {
		return fmt.Errorf("%d %s: %s", problem.Status, problem.Title, problem.Detail)
	}
	return err
}

func retryAfter(err error) time.Duration {
	problem, _ := problemOf(err)
	return time.Duration(problem.GetRetryAfterMs()) * time.Millisecond
}

func main() {
	rows := []map[string]any{}
	for _, text := range os.Args[3:] {
		row := map[string]any{}
		if err := json.Unmarshal([]byte(text), &row); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		rows = append(rows, row)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	client := Connect(os.Args[1], os.Getenv("ICEDB_TOKEN"))
	accepted, err := Send(ctx, client, os.Args[2], NewBatchID(time.Now()), rows)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(accepted.BatchId)
}
