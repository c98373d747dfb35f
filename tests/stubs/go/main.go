// A client of Anabranch on the generated stubs alone. ../README.md says what it does.
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 3 {
		fail(fmt.Errorf("usage: %s conformance|session FILE", os.Args[0]))
	}
	vectors, err := readVectors(os.Args[2])
	if err != nil {
		fail(err)
	}
	var told any
	switch os.Args[1] {
	case "conformance":
		told, err = conformance(vectors)
	case "session":
		told, err = session(vectors)
	default:
		err = fmt.Errorf("no such command: %s", os.Args[1])
	}
	if err != nil {
		fail(err)
	}
	line, err := json.Marshal(told)
	if err != nil {
		fail(err)
	}
	fmt.Println(string(line))
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
