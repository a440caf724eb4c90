package transport_test

import (
	"context"
	"fmt"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// A worker sends a request to a server over an in-memory network. Over TCP, only the two networks and the address
// differ.
func Example() {
	mem := transport.NewMemory(1, transport.MemoryOptions{})
	server, worker := mem.Host("server:0"), transport.NewFaultLayer(mem.Host("worker:0"))

	listener, err := server.Listen("server:0/1")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer listener.Close()
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		var f wire.Frame
		for conn.Recv(&f) == nil {
			f.Kind, f.Payload = wire.KindRows, []byte("rows")
			if conn.Send(f) != nil {
				return
			}
		}
	}()

	conn, err := worker.Dial(context.Background(), listener.Addr())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	var answer wire.Frame
	err = conn.Send(wire.Frame{Header: wire.Header{Kind: wire.KindGet, Request: 7}})
	if err == nil {
		err = conn.Recv(&answer)
	}
	fmt.Println(answer.Request, string(answer.Payload), err)
	// Output: 7 rows <nil>
}
