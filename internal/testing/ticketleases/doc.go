// Package ticketleases searches every short history of one key whose estimates have a lease: processes take permits, plainly
// or as tickets, take more, extend and settle, early or late, by more or less than they estimated. Replies and requests are
// lost, leases end, one call gives back only so many tickets, limiters without the option share the key, and the server's
// clock steps. The key is a bucket, a fixed window, or a log: under several rules, or by sub-windows. Numbers are whole.
//
// Two things are counted after each call: by how much what is taken exceeds the rule, where a ticket counts all that it
// took until its lease ends, then nothing, and what was used once it is settled; and by how much the key counts more than
// that. Both are 0 for the rules that the scripts follow. The others are there because a search that does not find what
// they break proves nothing.
package ticketleases
