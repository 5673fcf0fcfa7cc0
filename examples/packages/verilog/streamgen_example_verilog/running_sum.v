// Running sum with saturation: every token is added to the sum of those before it in its panel.
//
// A descriptor starts `panels` panels of `rows` tokens; a token is LANES numbers of 16 bits. The sum is the
// output register itself. One token a cycle, one cycle later.

module running_sum #(
    parameter LANES = 1,
    parameter ROWS_BITS = 8,
    parameter PANELS_BITS = 8
) (
    input  wire clk,
    input  wire rst,

    input  wire [ROWS_BITS+PANELS_BITS-1:0] i_descriptor_payload,  // rows in the lowest bits, then panels
    input  wire i_descriptor_valid,
    output wire i_descriptor_ready,

    input  wire [16*LANES-1:0] i_payload,
    input  wire i_valid,
    output wire i_ready,

    output reg  [16*LANES-1:0] o_payload,
    output reg  o_valid,
    input  wire o_ready
);
    reg active, first;
    reg [ROWS_BITS-1:0] rows, rows_left;  // of a panel; after the present one
    reg [PANELS_BITS-1:0] panels_left;

    wire step = i_valid & i_ready;
    wire last_row = rows_left == 0;
    wire last = last_row & (panels_left == 0);

    assign i_ready = active & (~o_valid | o_ready);
    assign i_descriptor_ready = ~active | (step & last);

    always @(posedge clk) begin
        if (step) begin
            first <= last_row;
            rows_left <= last_row ? rows : rows_left - 1'b1;
            panels_left <= panels_left - last_row;
        end
        if (i_descriptor_ready) begin
            active <= i_descriptor_valid;
            first <= 1'b1;
            rows <= i_descriptor_payload[ROWS_BITS-1:0] - 1'b1;
            rows_left <= i_descriptor_payload[ROWS_BITS-1:0] - 1'b1;
            panels_left <= i_descriptor_payload[ROWS_BITS+:PANELS_BITS] - 1'b1;
        end
        if (~o_valid | o_ready) o_valid <= step;
        if (rst) begin
            active <= 1'b0;
            o_valid <= 1'b0;
        end
    end

    genvar lane;
    generate
        for (lane = 0; lane < LANES; lane = lane + 1) begin : lanes
            wire signed [15:0] value = i_payload[16*lane+:16];
            wire signed [15:0] previous = first ? 16'sd0 : o_payload[16*lane+:16];
            wire signed [16:0] sum = value + previous;
            wire overflow = sum[16] != sum[15];
            always @(posedge clk)
                if (step) o_payload[16*lane+:16] <= overflow ? {sum[16], {15{~sum[16]}}} : sum[15:0];
        end
    endgenerate
endmodule
