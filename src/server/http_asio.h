// The parts of Asio and Beast that the HTTP server is built of. Private to http_server.cpp, http_connection.cpp and
// http_exchange.cpp: no other file sees Boost.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>
#include <chrono>

namespace spate {

namespace asio = boost::asio;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
// With the io_context's own executor in place of the type-erased default.
using Strand = asio::strand<asio::io_context::executor_type>;
using Socket = asio::basic_stream_socket<asio::generic::stream_protocol, asio::io_context::executor_type>;
using Timer = asio::basic_waitable_timer<Clock, asio::wait_traits<Clock>, asio::io_context::executor_type>;

}  // namespace spate
