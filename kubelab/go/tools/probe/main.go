// Package main is a web server and a web client in one small program, for tests of a cluster.
//
//	probe serve :8080      answers every request with the host's name
//	probe get URL          asks until there is an answer, and prints it
package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: probe serve ADDRESS | probe get URL")
		os.Exit(2)
	}
	if os.Args[1] == "serve" {
		host, _ := os.Hostname()
		answer := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, host) }
		fmt.Fprintln(os.Stderr, http.ListenAndServe(os.Args[2], http.HandlerFunc(answer)))
		os.Exit(1)
	}
	// Who answers is what the tests ask, so any certificate will do.
	any := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	client := http.Client{Timeout: 2 * time.Second, Transport: any}
	for {
		if response, err := client.Get(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
		} else if response.StatusCode == http.StatusOK {
			_, _ = io.Copy(os.Stdout, response.Body)
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
}
